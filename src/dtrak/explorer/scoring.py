"""Prepare and keep the scores of sets of pictures by several methods, for any λ.

When a set is prepared, one matrix product gives the scores of one picture for all training images, of one training
image for all pictures, or the sum over pictures (`attribution/scoring.py`). The kernels stay in memory.
"""

from dataclasses import dataclass
from pathlib import Path

from dtrak.attribution.scores import refuse_not_finite
from dtrak.attribution.scoring import DampedScores, FixedScores, scores_for, self_influence
from dtrak.contracts import EVERY, Array
from dtrak.errors import UsageError
from dtrak.images.images import Images
from dtrak.inputs.arrays import TrainingKernel
from dtrak.inputs.source_of import source_of
from dtrak.inputs.task import Task
from dtrak.kernels.damping import Damping, UsedDamping
from dtrak.methods import Method

Scored = DampedScores | FixedScores  # the scores of some queries by one method


class Scorer:
    """Scores queries by several methods. Only one thread may call `prepare`; the other methods are for any thread."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.kernels: dict[str, list[TrainingKernel]] = {}  # by method; they do not depend on the queries
        self.known: dict[tuple[str, str], Scored | UsageError] = {}  # by the queries' fingerprint and the method

    def scored(self, queries: Images, method: Method) -> Scored | UsageError | None:
        """Return the scores; None if they are not prepared, and an error if the method cannot score these queries."""
        return self.known.get((queries.fingerprint, method.name))

    def prepare(self, queries: Images, method: Method, folder: Path | None = None) -> None:
        """Compute the features and scores of these queries, or read them; `folder` replaces the task's folder."""
        if self.scored(queries, method) is None:
            try:
                self.known[queries.fingerprint, method.name] = self._score(queries, method, folder)
            except UsageError as error:
                self.known[queries.fingerprint, method.name] = error

    def forget(self, queries: Images) -> None:
        """Forget the scores of these queries by all methods."""
        for key in [key for key in self.known if key[0] == queries.fingerprint]:
            del self.known[key]

    def _score(self, queries: Images, method: Method, folder: Path | None) -> Scored:
        task = self.task.with_queries(queries, folder)
        source_of(method).check(task)
        if method.kernel is None:
            (values,) = scores_for(task, method, [Damping()])
            refuse_not_finite(values, method.name, queries.ids, task.train.ids, "cannot score")
            return FixedScores(values)
        scored = DampedScores.of(task, method, self.kernels.get(method.name, ()))
        for kernel in scored.kernels:
            for rule in _rules(scored.kernels[0]):
                kernel.absolute(Damping.parse(rule))  # computes λ now and keeps it, so that threads only read it
        self.kernels[method.name] = scored.kernels
        return scored

    def self_influence(self, method: Method, damping: Damping, train: slice = EVERY) -> Array:
        """Return the self-influence τ(x^n)_n of all training images, or of some, [N]."""
        if not method.self_influence:
            raise UsageError(f"{method.name} has no self-influence: trak and d-trak have one")
        return self_influence(method, self.kernels[method.name], damping, train)

    def scale(self, method: Method, damping: Damping) -> "Scale":
        """Describe a damping for the kernel of the method's first model."""
        first = self.kernels[method.name][0]
        rules = {rule: first.relative(Damping.parse(rule)) for rule in _rules(first)}
        return Scale(UsedDamping.of(first.kernel, damping, first.absolute(damping)), rules)


@dataclass(frozen=True)
class Scale:
    """A damping λ on the scale of the page's slider."""

    used: UsedDamping
    rules: dict[str, float]  # the λ of each rule, ÷ the mean eigenvalue


def _rules(first: TrainingKernel) -> list[str]:
    """Return the rules for λ that this kernel can use: `auto` is one of them if the features for it are there."""
    return ["auto", "spectrum"] if first.has_automatic else ["spectrum"]
