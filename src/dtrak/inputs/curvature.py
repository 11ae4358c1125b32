"""Whole gradients of the training loss, with the Gauss–Newton matrix of the network as their preconditioner."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from dtrak.errors import UsageError
from dtrak.inputs.arrays import TrainingKernel, Vectors
from dtrak.inputs.gradients import Gradients, query_stores, train_stores
from dtrak.inputs.needs import GradientKind
from dtrak.inputs.task import Task
from dtrak.kernels.kronecker import KroneckerKernel, published_damping

BYTES_ON_DISK, BYTES_IN_MEMORY = 4, 24  # for each parameter, of a training image and of a query


@dataclass(frozen=True)
class WholeGradients(Gradients):
    """Each image is a vector: its gradient, which is not projected."""

    @property
    def cost(self) -> str:  # type: ignore[override]
        return "3 × K gradients per image, kept whole"

    @property
    def kind(self) -> GradientKind:
        return GradientKind(self.models, whole=True)

    def check(self, task: Task) -> None:
        """Refuse more parameters than the disk or the memory can hold."""
        from dtrak.devices import total_memory

        numbers = sum(value.numel() for value in task.model.parameters(task.settings.parameters).values())
        there = next(folder for folder in (task.folder, *task.folder.absolute().parents) if folder.exists())
        disk, memory = shutil.disk_usage(there).free, total_memory(task.model.device) / 2
        for images, size, room, where in (
            (task.train, BYTES_ON_DISK, disk, "on the disk"),
            (task.queries, BYTES_IN_MEMORY, memory, "in half of the memory"),
        ):
            if size * numbers * len(images) > room:
                raise UsageError(
                    f"whole gradients of {len(images):,} images and {numbers:,} parameters take "
                    f"{size * numbers * len(images) / 1e9:,.1f} GB, but there are {room / 1e9:,.1f} GB {where}: "
                    "give fewer --parameters"
                )

    def inputs(self, task: Task) -> Iterator[Vectors]:
        from dtrak.features.curvature import kept_directions

        train = train_stores(task, self.kind, 0)[self.objective]
        queries = query_stores(task, self.kind, 0, self.along_trajectory)[self.objective].numpy()

        def fit() -> KroneckerKernel:
            settings, images = task.settings.features, task.train_inputs
            if settings.skip_bad and (bad := set(train.left_out())):
                images = images.select([row for row in range(len(images)) if row not in bad])
            return KroneckerKernel(kept_directions(task.model, images, settings, task.folder), train)

        key = "Gauss–Newton kernel"
        fitted = task.once_for_training(key, lambda: TrainingKernel(fit, published_damping))
        yield Vectors(train, queries, fitted)
