"""What the explorer has scored: by every method, of every set of pictures, ready for any λ.

One picture for all training images is one product of matrices, and so are one training image for all pictures and the
sum over pictures (`attribution/scoring.py`). Kernels stay in memory; the work is done once.
"""

from dataclasses import dataclass
from pathlib import Path

from dtrak.attribution.scores import refuse_not_finite
from dtrak.attribution.scoring import DampedScores, FixedScores, scores_for, self_influence
from dtrak.errors import UsageError
from dtrak.images.images import Images
from dtrak.inputs.arrays import TrainingKernel
from dtrak.inputs.task import Task
from dtrak.kernels.damping import Damping
from dtrak.kernels.preconditioner import EVERY, Array, effective_dimension
from dtrak.methods import Method

Scored = DampedScores | FixedScores  # of some queries by one method


class Scorer:
    """The scores of any queries by some methods. `prepare` is for one thread; what it has made, many may read."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.kernels: dict[str, list[TrainingKernel]] = {}  # by method, the same whatever the queries
        self.known: dict[tuple[str, str], Scored | UsageError] = {}  # by the queries' fingerprint and the method

    def scored(self, queries: Images, method: Method) -> Scored | UsageError | None:
        """None if it is not prepared; an error if the method has no answer about these queries."""
        return self.known.get((queries.fingerprint, method.name))

    def prepare(self, queries: Images, method: Method, folder: Path | None = None) -> None:
        """Make what the scores of these queries come from, or read it from the store, which may be a `folder` apart."""
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
        method.source.check(task)
        if not method.damped:
            (values,) = scores_for(task, method, [Damping()])
            refuse_not_finite(values, method.name, queries.ids, task.train.ids, "cannot answer")
            return FixedScores(values)
        scored = DampedScores.of(task, method, self.kernels.get(method.name, ()))
        for kernel in scored.kernels:  # so that many may read the λ of each rule
            for rule in _rules(scored.kernels[0]):
                kernel.absolute(Damping.parse(rule))
        self.kernels[method.name] = scored.kernels
        return scored

    def self_influence(self, method: Method, damping: Damping, train: slice = EVERY) -> Array:
        """τ(x^n)_n of every training image, or of some, [N]."""
        if not method.tells_self_influence:
            raise UsageError(f"{method.name} does not tell what a training image does for itself: trak and d-trak do")
        return self_influence(self.kernels[method.name], damping, train)

    def scale(self, method: Method, damping: Damping) -> "Scale":
        """What a damping means for the method's first model."""
        first = self.kernels[method.name][0]
        return Scale(
            relative=first.relative(damping),
            dimension=effective_dimension(first.kernel, first.absolute(damping)),
            rank=len(first.kernel.eigenvalues),
            rules={rule: first.relative(Damping.parse(rule)) for rule in _rules(first)},
        )


@dataclass(frozen=True)
class Scale:
    """A λ as a fraction of the mean eigenvalue, how many directions it keeps of how many, and the rules beside it."""

    relative: float
    dimension: float
    rank: int
    rules: dict[str, float]


def _rules(first: TrainingKernel) -> list[str]:
    """The rules for λ that can be followed: `auto` needs the features of another objective."""
    return ["auto", "spectrum"] if first.automatic is not None else ["spectrum"]
