"""Scores of a task by its methods, for one λ or for any: commands and the explorer score through the same objects.

scores = mean over models and objectives of  formula(input, λ)        [Q, N]
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dtrak.attribution.scores import Scores
from dtrak.inputs.arrays import KernelPart, TrainingKernel, Vectors
from dtrak.inputs.task import Task
from dtrak.kernels.damping import Damping
from dtrak.kernels.preconditioner import EVERY, Array
from dtrak.methods.method import Method, Values


def score(task: Task, method: Method, damping: Damping) -> Scores:
    """The method's scores of the task's training images for its queries."""
    (values,), own = _averaged(task, method, [damping], method.has_self_influence)
    return Scores(values, task.train.ids, task.queries.ids, method.name, task.train.columns, own)


def scores_for(task: Task, method: Method, dampings: Sequence[Damping]) -> list[Values]:
    """[Q, N] for each of several dampings, at the price of one decomposition for each model and objective."""
    return _averaged(task, method, dampings, False)[0]


def _averaged(
    task: Task, method: Method, dampings: Sequence[Damping], with_self_influence: bool
) -> tuple[list[Values], Values | None]:
    """One input after the other, as the kernels of several models would fill the memory."""
    totals, own, count = list[Values](), np.zeros(len(task.train)), 0
    for one in method.source.inputs(task):
        found = [method.formula(one, damping) for damping in dampings]
        totals = [total + more for total, more in zip(totals, found, strict=True)] if totals else found
        if with_self_influence:
            own += one.kernel.self_influence(one.absolute(dampings[0]))
        count += 1
    values = [total / np.float32(count) for total in totals]
    return values, np.asarray(own / count, dtype=np.float32) if with_self_influence else None


@dataclass(frozen=True, eq=False)
class DampedScores:
    """The scores of some queries by a method with a kernel, for every λ. Its kernels stay in memory."""

    method: Method
    parts: Sequence[KernelPart]  # one for each model and objective

    @classmethod
    def of(cls, task: Task, method: Method, kernels: Sequence[TrainingKernel] = ()) -> "DampedScores":
        """The scores of a task; `kernels` that were fitted on the same features before are not made again."""
        inputs: list[Vectors] = list(method.source.inputs(task))
        fitted = kernels or [one.training for one in inputs]
        pairs = zip(inputs, fitted, strict=True)
        return cls(method, [KernelPart(one, one.kernel.coordinates(vectors.queries)) for vectors, one in pairs])

    def scores(self, damping: Damping, queries: slice = EVERY, train: slice = EVERY) -> Values:
        """[Q, N], or of some queries and some training images."""
        return self._mean(damping, [part.only(queries, train) for part in self.parts])

    def total(self, damping: Damping) -> Values:
        """The sum over all queries, [N]."""
        return np.asarray(self._mean(damping, [part.summed() for part in self.parts])[0])

    def _mean(self, damping: Damping, parts: Sequence[KernelPart]) -> Values:
        return np.asarray(np.mean([self.method.formula(part, damping) for part in parts], axis=0))

    @property
    def kernels(self) -> list[TrainingKernel]:
        """One for each model and objective, the same whatever the queries."""
        return [part.training for part in self.parts]


@dataclass(frozen=True, eq=False)
class FixedScores:
    """The scores of some queries by a method that knows no λ."""

    values: Values  # [Q, N]

    def scores(self, damping: Damping, queries: slice = EVERY, train: slice = EVERY) -> Values:
        return self.values[queries, train]

    def total(self, damping: Damping) -> Values:
        return np.asarray(self.values.sum(0))


def self_influence(kernels: Sequence[TrainingKernel], damping: Damping, train: slice = EVERY) -> Array:
    """τ(x^n)_n of the training images, or of some: the mean over models and objectives, [N]."""
    return np.asarray(np.mean([one.kernel.self_influence(one.absolute(damping), train) for one in kernels], axis=0))
