"""Sources that use the gradients of every noised copy in other ways than a kernel of all of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from dtrak.inputs.arrays import TrainingKernel, Vectors
from dtrak.inputs.gradients import Gradients, members, query_stores, train_stores
from dtrak.inputs.task import Task
from dtrak.kernels.copies import CopyFeatures, OneCopy
from dtrak.kernels.damping import damping_by_rows
from dtrak.kernels.leave_one_out import fit_leave_one_out


@dataclass(frozen=True)
class UnitMeans(Gradients):
    """Each image is a vector: the mean of the gradients of its noised copies, each scaled to length 1."""

    apart: bool = True
    every_layer: bool = True

    def inputs(self, task: Task) -> Iterator[Vectors]:
        for member in range(len(members(task, self.models))):
            features = CopyFeatures([train_stores(task, self.kind, member)[self.objective]]).mean()
            queries = query_stores(task, self.kind, member, self.along_trajectory)[self.objective].numpy()
            yield Vectors(OneCopy(features, 0), features.prepared([torch.from_numpy(queries)])[:, 0].numpy())


@dataclass(frozen=True)
class Residuals(Gradients):
    """Each noised copy has its own kernel, which knows how far the training images are from their targets."""

    apart: bool = True
    every_layer: bool = True

    @property
    def cost(self) -> str:  # type: ignore[override]
        return f"{super().cost}, K predictions per training image"

    def inputs(self, task: Task) -> Iterator[Vectors]:
        stores = train_stores(task, self.kind, 0)
        features = CopyFeatures([stores[self.objective]], unit=False)
        queries = query_stores(task, self.kind, 0, self.along_trajectory)[self.objective].numpy()
        from dtrak.features.residuals import residuals_of

        make = partial(residuals_of, task.model, task.train_inputs, task.settings.features, task.folder)
        residuals = task.once_for_training("residuals", make)
        for copy in range(queries.shape[1]):
            rows = OneCopy(features, copy)
            fit = partial(fit_leave_one_out, rows, residuals[:, copy])
            yield Vectors(rows, queries[:, copy], TrainingKernel(fit, partial(damping_by_rows, copies=1)))
