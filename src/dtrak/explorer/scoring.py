"""Prepare and keep the scores of sets of pictures by several methods, for any λ.

When a set is prepared, one matrix product gives the scores of one picture for all training images, of one training
image for all pictures, or the sum over pictures. The kernels stay in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dtrak.attribution.answer import score, squared
from dtrak.attribution.formula_inputs import Fitted, Input, inputs_of
from dtrak.attribution.opened import Opened, check
from dtrak.attribution.required_gradients import objectives_of, rule_of, spec_of
from dtrak.attribution.scores import refuse_not_finite
from dtrak.contracts import EVERY, Array, KernelInput, Values
from dtrak.errors import UsageError
from dtrak.images.images import Images, ImageSource
from dtrak.kernels.damping import Damping, UsedDamping, compared_objective
from dtrak.methods import Method


@dataclass(frozen=True, eq=False)
class DampedScores:
    """The scores of some queries by a method with a kernel, for every λ."""

    method: Method
    inputs: Sequence[Input]  # one for each model and objective

    def scores(self, damping: Damping, queries: slice = EVERY, train: slice = EVERY) -> Values:
        """Return scores [Q, N], of all queries and training images or of some."""
        of_each = [one.scores(self.method, damping, queries, train) for one in self.inputs]
        return squared(self.method, np.mean(of_each, axis=0)).astype(np.float32)

    def total(self, damping: Damping) -> Values:
        """Return the sum over all queries, [N]: of linear scores, the scores of the summed queries."""
        if self.method.square or not self.method.linear:
            return np.asarray(self.scores(damping).sum(0))
        summed = []
        for one in self.inputs:
            assert isinstance(one.arrays, KernelInput)
            coordinates = one.arrays.coordinates.sum(0, keepdims=True)
            summed.append(replace(one, arrays=replace(one.arrays, coordinates=coordinates)))
        return np.asarray(replace(self, inputs=summed).scores(damping)[0])

    @property
    def kernels(self) -> list[Fitted]:
        """Return the kernel of each model and objective. They do not depend on the queries."""
        return [one.fitted for one in self.inputs if one.fitted is not None]


@dataclass(frozen=True, eq=False)
class FixedScores:
    """The scores of some queries by a method without λ."""

    values: Values  # [Q, N]

    def scores(self, damping: Damping, queries: slice = EVERY, train: slice = EVERY) -> Values:
        return self.values[queries, train]

    def total(self, damping: Damping) -> Values:
        return np.asarray(self.values.sum(0))


Scored = DampedScores | FixedScores  # the scores of some queries by one method


class Scorer:
    """Scores queries by several methods. Only one thread may call `prepare`; the other methods are for any thread."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.kernels: dict[str, list[Fitted]] = {}  # by method; they do not depend on the queries
        self.known: dict[tuple[str, str], Scored | UsageError] = {}  # by the queries' fingerprint and the method

    def scored(self, queries: Images, method: Method) -> Scored | UsageError | None:
        """Return the scores; None if they are not prepared, and an error if the method cannot score these queries."""
        return self.known.get((queries.fingerprint, method.name))

    def prepare(self, queries: Images, method: Method, folder: Path | None = None) -> None:
        """Compute the features and scores of these queries, or read them; `folder` keeps what is made of them apart."""
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
        opened = self.opened.with_queries(ImageSource(queries), folder)
        check(opened, method)
        if method.kernel is None:
            (values,), _, _ = score(opened, method, [Damping()])
            refuse_not_finite(values, method.name, queries.ids, opened.images("train").ids, "cannot score")
            return FixedScores(values)
        scored = DampedScores(method, list(inputs_of(opened, method)))
        for kernel in scored.kernels:
            for rule in self._rules(method):
                kernel.absolute(Damping.parse(rule))  # computes λ now and keeps it, so that threads only read it
        self.kernels[method.name] = scored.kernels
        return scored

    def _rules(self, method: Method) -> list[str]:
        """Return the rules for λ that a method can use: "auto" if the features that it compares are there."""
        settings = self.opened.question.settings
        compared = compared_objective(objectives_of(method, settings)[0])
        is_there = compared in self.opened.required[spec_of(method, settings)].train
        return ["auto", "spectrum"] if is_there or rule_of(method) != "agreement" else ["spectrum"]

    def self_influence(self, method: Method, damping: Damping, train: slice = EVERY) -> Array:
        """Return the self-influence τ(x^n)_n of all training images, or of some, [N]."""
        if not method.self_influence:
            raise UsageError(f"{method.name} has no self-influence: trak and d-trak have one")
        kernels = self.kernels[method.name]
        of_each = [one.kernel.squares(one.absolute(damping), 1, train) for one in kernels]
        return squared(method, np.mean(of_each, axis=0))

    def scale(self, method: Method, damping: Damping) -> "Scale":
        """Describe a damping for the kernel of the method's first model."""
        first = self.kernels[method.name][0]
        used = {rule: _used(first, Damping.parse(rule)) for rule in self._rules(method)}
        return Scale(_used(first, damping), {rule: one.relative for rule, one in used.items()})


def _used(fitted: Fitted, damping: Damping) -> UsedDamping:
    return UsedDamping.of(fitted.kernel, damping, fitted.absolute(damping))


@dataclass(frozen=True)
class Scale:
    """A damping λ on the scale of the page's slider."""

    used: UsedDamping
    rules: dict[str, float]  # the λ of each rule, ÷ the mean eigenvalue
