"""Compute the scores of a task, for one λ or for any λ. Commands and the explorer use the same functions.

scores = mean over models and objectives of  formula(input, λ)        [Q, N], squared if the method says so
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dtrak.attribution.scores import Scores, refuse_not_finite
from dtrak.attribution.top_scores import TopScores
from dtrak.contracts import EVERY, Array, Values, Vectors
from dtrak.images.metadata import plain_column
from dtrak.inputs.arrays import KernelPart, KernelVectors, TrainingKernel
from dtrak.inputs.source_of import source_of
from dtrak.inputs.task import Task
from dtrak.kernels.damping import Damping, UsedDamping
from dtrak.methods import Method

Floating = TypeVar("Floating", bound=np.floating[Any])

MATRIX_BYTES = 256 << 20  # so much of the matrix of scores is in memory if only the strongest are wanted


def score(task: Task, method: Method, damping: Damping) -> Scores:
    """Return the method's scores of the task's training images for its queries."""
    (values,), own, used = _averaged(task, method, [damping], method.self_influence)
    train, queries = task.train, task.queries
    return Scores(values, train.ids, queries.ids, method.name, train.columns, own, used, train, queries)


def strongest(task: Task, method: Method, damping: Damping, top: int) -> Scores:
    """Return the `top` highest and the `top` lowest scores of each query, as `score` would give them.

    Only some rows of the matrix of scores [Q, N] are in memory at a time. Self-influence is not computed.
    """
    train, queries = task.train, len(task.queries)
    columns = {name: plain_column(column) for name, column in train.columns.items()}
    holder, at_once = TopScores(top, columns), max(1, MATRIX_BYTES // (4 * len(train)))
    for first in range(0, queries, at_once):
        some = slice(first, min(first + at_once, queries))
        (values,), _, used = _averaged(task, method, [damping], False, some)
        refuse_not_finite(values, method.name, task.queries.ids[some], train.ids, "the scores cannot be ranked")
        holder.add(values)
    values, held = holder.held()
    chosen = {name: column[held.positions] for name, column in columns.items()}
    ids, asked = train.ids[held.positions], task.queries
    return Scores(values, ids, asked.ids, method.name, chosen, None, used, train, asked, held)


def scores_for(task: Task, method: Method, dampings: Sequence[Damping]) -> list[Values]:
    """Return scores [Q, N] for each damping. Every model and objective needs only one decomposition."""
    return _averaged(task, method, dampings, False)[0]


def _averaged(
    task: Task, method: Method, dampings: Sequence[Damping], with_self_influence: bool, queries: slice = EVERY
) -> tuple[list[Values], Values | None, UsedDamping | None]:
    """Average over the inputs, one after the other, as the kernels of several models would fill the memory.

    The formula gets only the chosen queries; inputs that are not vectors have all of them.
    """
    totals, own, count = list[Values](), np.zeros(len(task.train)), 0
    used: UsedDamping | None = None
    for one in source_of(method).inputs(task.asking(dampings)):
        if isinstance(one, KernelVectors):
            kernel, absolute = one.training.kernel, [one.training.absolute(damping) for damping in dampings]
            part = one.part(queries).input()
            found = [method.formula(part, damping) for damping in absolute]
            if with_self_influence:
                own += kernel.squares(absolute[0], 1)
            used = used or UsedDamping.of(kernel, dampings[0], absolute[0])
        elif isinstance(one, Vectors):
            found = [method.formula(replace(one, queries=one.queries[queries]), 0.0)]
        else:
            found = [method.formula(one, 0.0)[queries]]
        totals = [total + more for total, more in zip(totals, found, strict=True)] if totals else found
        count += 1
    values = [squared(method, total / np.float32(count)) for total in totals]
    return values, squared(method, own / count).astype(np.float32) if with_self_influence else None, used


def squared(method: Method, scores: NDArray[Floating]) -> NDArray[Floating]:
    """Return s·|s| of scores s if the method says so. Their order and sign stay the same."""
    return scores * np.abs(scores) if method.square else scores


@dataclass(frozen=True, eq=False)
class DampedScores:
    """The scores of some queries by a method with a kernel, for every λ. Its kernels stay in memory."""

    method: Method
    parts: Sequence[KernelPart]  # one for each model and objective

    @classmethod
    def of(cls, task: Task, method: Method, kernels: Sequence[TrainingKernel] = ()) -> "DampedScores":
        """Return the scores of a task. `kernels` that were fitted on the same features are used instead of new ones."""
        inputs: list[KernelVectors] = list(source_of(method).inputs(task))
        fitted = kernels or [one.training for one in inputs]
        return cls(method, [replace(one, training=of).part() for one, of in zip(inputs, fitted, strict=True)])

    def scores(self, damping: Damping, queries: slice = EVERY, train: slice = EVERY) -> Values:
        """Return scores [Q, N], of all queries and training images or of some."""
        return self._mean(damping, [part.only(queries, train) for part in self.parts])

    def total(self, damping: Damping) -> Values:
        """Return the sum over all queries, [N]."""
        if self.method.square or not self.method.linear:
            return np.asarray(self.scores(damping).sum(0))
        return np.asarray(self._mean(damping, [part.summed() for part in self.parts])[0])

    def _mean(self, damping: Damping, parts: Sequence[KernelPart]) -> Values:
        of_each = [self.method.formula(part.input(), part.training.absolute(damping)) for part in parts]
        return squared(self.method, np.mean(of_each, axis=0))

    @property
    def kernels(self) -> list[TrainingKernel]:
        """Return the kernel of each model and objective. They do not depend on the queries."""
        return [part.training for part in self.parts]


@dataclass(frozen=True, eq=False)
class FixedScores:
    """The scores of some queries by a method without λ."""

    values: Values  # [Q, N]

    def scores(self, damping: Damping, queries: slice = EVERY, train: slice = EVERY) -> Values:
        return self.values[queries, train]

    def total(self, damping: Damping) -> Values:
        return np.asarray(self.values.sum(0))


def self_influence(method: Method, kernels: Sequence[TrainingKernel], damping: Damping, train: slice = EVERY) -> Array:
    """Return τ(x^n)_n of all training images or of some, [N], as the mean over models and objectives."""
    of_each = [one.kernel.squares(one.absolute(damping), 1, train) for one in kernels]
    return squared(method, np.mean(of_each, axis=0))
