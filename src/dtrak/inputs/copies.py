"""Sources that use the gradients of every noised copy in other ways than a kernel of all of them."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from dtrak.inputs.arrays import Vectors
from dtrak.inputs.gradients import Gradients, members, query_stores, train_stores
from dtrak.inputs.task import Task
from dtrak.kernels.copies import CopyFeatures, OneCopy


@dataclass(frozen=True)
class UnitMeans(Gradients):
    """Each image is a vector: the mean of the gradients of its noised copies, each scaled to length 1."""

    apart: bool = True

    def inputs(self, task: Task) -> Iterator[Vectors]:
        for member in range(len(members(task, self.models))):
            features = CopyFeatures([train_stores(task, self.kind, member)[self.objective]]).mean()
            queries = query_stores(task, self.kind, member, self.along_trajectory)[self.objective].numpy()
            yield Vectors(OneCopy(features, 0), features.prepared([torch.from_numpy(queries)])[:, 0].numpy())
