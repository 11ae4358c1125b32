"""Scores for any λ at once, from decompositions that stay in memory.

    τ(x)_n = Σ_r b_r(x) e_nr / (s_r + λ)

One query for all training images is one product with e, one training image for all queries one with b, and the sum over
queries costs as much as one of them. Methods without λ keep their scores as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dtrak.damping import Damping, effective_dimension, following, partner_of
from dtrak.data import Images
from dtrak.errors import UsageError
from dtrak.evidence import Evidence
from dtrak.kernels import Array, Kernel
from dtrak.methods import Method, objectives_of
from dtrak.methods.inputs import Vectors
from dtrak.methods.kernel import kernel_scores
from dtrak.methods.method import Gradients, Values
from dtrak.scores import refuse_not_finite

ALL = slice(None)


@dataclass(frozen=True, eq=False)
class Member:
    """The kernel of one model's gradients of an objective, with the λ that each rule sets for it."""

    kernel: Kernel
    rules: dict[str, float]  # absolute λ
    leader: "Member | None" = None  # whose λ says how many directions are kept of this kernel, too

    def absolute(self, damping: Damping) -> float:
        if self.leader is not None:
            return following(self.leader.kernel, self.leader.absolute(damping), self.kernel)
        if damping.kind in ("relative", "absolute"):
            found = damping.absolute(self.kernel)
            if not np.isfinite(found):
                raise UsageError(f"damping {damping.value:g}: it is more than a number can hold")
            return found
        if damping.kind not in self.rules:
            raise UsageError(
                "damping 'auto' compares two objectives, and the features of one are not there: "
                "serve the run with --damping auto, or with --method trak,d-trak"
            )
        return self.rules[damping.kind]

    def relative(self, damping: Damping) -> float:
        """As a fraction of the mean eigenvalue."""
        return self.absolute(damping) / self.kernel.mean_eigenvalue


@dataclass(frozen=True, eq=False)
class Seen:
    """What a kernel's formula sees of some queries and some training images, for one absolute λ."""

    kernel: Kernel
    coordinates: Array  # b [Q, r]

    def absolute(self, damping: Damping) -> float:
        return damping.value


@dataclass(frozen=True, eq=False)
class Live:
    """The scores of some queries by a method with a kernel, for every λ."""

    method: Method
    members: Sequence[Member]
    coordinates: Sequence[Array]  # b [Q, r] by each member

    def scores(self, damping: Damping, queries: slice = ALL, train: slice = ALL) -> Values:
        """[Q, N], or of some queries and some training images."""
        return self._mean(damping, [one[queries] for one in self.coordinates], train)

    def total(self, damping: Damping) -> Values:
        """The sum over all queries, [N]."""
        return np.asarray(self._mean(damping, [one.sum(0, keepdims=True) for one in self.coordinates], ALL)[0])

    def _mean(self, damping: Damping, coordinates: Sequence[Array], train: slice) -> Values:
        found: list[Values] = []
        for member, of_member in zip(self.members, coordinates, strict=True):
            kernel = replace(member.kernel, train=member.kernel.train[train])
            fixed = Damping("absolute", member.absolute(damping))
            found.append(self.method.formula(Seen(kernel, of_member), fixed))
        return np.asarray(np.mean(found, axis=0))


@dataclass(frozen=True, eq=False)
class Fixed:
    """The scores of some queries by a method that knows no λ."""

    values: Values  # [Q, N]

    def scores(self, damping: Damping, queries: slice = ALL, train: slice = ALL) -> Values:
        return self.values[queries, train]

    def total(self, damping: Damping) -> Values:
        return np.asarray(self.values.sum(0))


Scored = Live | Fixed


class Scorer:
    """The scores of any queries by some methods. `prepare` is for one thread; what it has made, many may read."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.members: dict[str, list[Member]] = {}  # by method
        self.known: dict[tuple[str, str], Scored | UsageError] = {}  # by the queries' fingerprint and the method

    def scored(self, queries: Images, method: Method) -> Scored | UsageError | None:
        """None if it is not prepared; an error if the method has no answer about these queries."""
        return self.known.get((queries.fingerprint, method.name))

    def prepare(self, queries: Images, method: Method) -> None:
        """Make what the scores of these queries come from, or read it from the store."""
        if self.scored(queries, method) is None:
            try:
                self.known[queries.fingerprint, method.name] = self._scored(queries, method)
            except UsageError as error:
                self.known[queries.fingerprint, method.name] = error

    def _scored(self, queries: Images, method: Method) -> Scored:
        evidence = self.evidence.asking(queries)
        evidence.check(method)
        if not method.damped:
            values = evidence.scores(method, Damping())
            refuse_not_finite(values, method.name, queries.ids, evidence.train.ids, "cannot answer")
            return Fixed(values)
        inputs: list[Vectors] = list(evidence.inputs(method))
        if method.name not in self.members:
            self.members[method.name] = _members(inputs)
        members = self.members[method.name]
        coordinates = [member.kernel.coordinates(one.queries) for member, one in zip(members, inputs, strict=True)]
        return Live(method, members, coordinates)

    def self_influence(self, method: Method, damping: Damping, train: slice = ALL) -> Array:
        """τ(x^n)_n of every training image, or of some, [N]."""
        if not tells_self_influence(method):
            raise UsageError(f"{method.name} does not tell what a training image does for itself: trak and d-trak do")
        found = []
        for member in self.members[method.name]:
            kernel = replace(member.kernel, train=member.kernel.train[train])
            found.append(kernel.self_influence(member.absolute(damping)))
        return np.asarray(np.mean(found, axis=0))

    def scale(self, method: Method, damping: Damping) -> "Scale":
        """What a damping means for the method's first model."""
        first = self.members[method.name][0]
        return Scale(
            relative=first.relative(damping),
            dimension=effective_dimension(first.kernel, first.absolute(damping)),
            rank=len(first.kernel.eigenvalues),
            rules={rule: first.relative(Damping.parse(rule)) for rule in first.rules},
        )


@dataclass(frozen=True)
class Scale:
    """A λ as a fraction of the mean eigenvalue, how many directions it keeps of how many, and the rules beside it."""

    relative: float
    dimension: float
    rank: int
    rules: dict[str, float]


def tells_self_influence(method: Method) -> bool:
    """Whether the method's score of a training image for itself is the kernel's own."""
    return method.formula is kernel_scores and isinstance(method.source, Gradients) and not method.source.journey


def finds_auto_for_nothing(methods: Sequence[Method], objective: str | None) -> bool:
    """Whether for each method with a λ another one brings the features that `auto` compares its own with."""
    asked = [(one, one.source.models) for one in methods if isinstance(one.source, Gradients)]
    there = {(models, name) for one, models in asked for name in objectives_of(one, objective)}
    wanted = {(models, partner_of(objectives_of(one, objective)[0])) for one, models in asked if one.damped}
    return wanted <= there


def _members(inputs: Sequence[Vectors]) -> list[Member]:
    """Each leader comes before those that it leads."""
    members: list[Member] = []
    for vectors in inputs:
        rules = ["auto", "spectrum"] if vectors.partner is not None else ["spectrum"]
        found = {rule: vectors.absolute(Damping.parse(rule)) for rule in rules}
        leader = None if vectors.leader is None else members[inputs.index(vectors.leader)]
        members.append(Member(vectors.kernel, found, leader))
    return members
