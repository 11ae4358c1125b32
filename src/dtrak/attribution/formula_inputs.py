"""Records become arrays: the inputs of a method's formula, one for each model, objective or copy that it averages."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dtrak.attribution import depends
from dtrak.attribution.opened import Opened
from dtrak.attribution.required_gradients import objectives_of, rule_of, spec_of
from dtrak.attribution.settings import Settings
from dtrak.contracts import EVERY, Counts, Kernel, KernelInput, NoisedQueries, RetrainedLosses, Rows, Values, Vectors
from dtrak.errors import UsageError
from dtrak.features.model_inputs import ModelInputs
from dtrak.features.spec import Spec
from dtrak.fingerprints import hash_of
from dtrak.gradients.copies import Copies, timesteps_of
from dtrak.kernels import KERNELS
from dtrak.kernels.damping import Damping, automatic, compared_objective, damping_as_of
from dtrak.kernels.kernel_cache import KeptFit, kept_ridge
from dtrak.kernels.kronecker import Kronecker as KroneckerKernel
from dtrak.kernels.rows import ArrayRows, CopyRows, OneRow
from dtrak.methods.method import (
    Embeddings,
    Gradients,
    Kronecker,
    Method,
    NoisedPixels,
    Nothing,
    Outcomes,
    Pixels,
    Ridge,
)

IMAGES_AT_ONCE = 64  # how many images are read at a time
FEWEST_MODELS = 2  # that outcomes are compared of


@dataclass(frozen=True, eq=False)
class Fitted:
    """A kernel that is fitted on training images, and its λ for each damping."""

    kernel: Kernel
    find: Callable[[Damping], float]
    kept: KeptFit[Any] | None = None  # keeps the λ that rules find, with the eigenvectors
    follows: str = ""  # the kernel that a rule compares with, or whose λ this one follows
    name: str = ""
    _found: dict[Damping, float] = field(default_factory=dict)

    def absolute(self, damping: Damping) -> float:
        """Return λ for this kernel."""
        if damping not in self._found:
            find = partial(self.find, damping)
            name = f"{damping.kind} {self.follows}".strip()
            found = self.kept.damping(name, find) if self.kept is not None and damping.is_rule else find()
            if not np.isfinite(found):
                raise UsageError(f"damping {damping.value:g}: it is too large")
            self._found[damping] = found
        return self._found[damping]


@dataclass(frozen=True, eq=False)
class Input:
    """What a formula gets, and the kernel in it."""

    arrays: Any  # one of the inputs of `contracts.py`
    fitted: Fitted | None = None
    chosen: slice = field(default_factory=lambda: EVERY)  # of all queries in `arrays`, those that are asked for

    def scores(self, method: Method, damping: Damping, queries: slice = EVERY, train: slice = EVERY) -> Values:
        """Return the formula's scores of some queries for some training images; those of a kernel cost only these."""
        arrays = self.arrays
        if isinstance(arrays, KernelInput) and self.fitted is not None:
            some = replace(arrays, coordinates=arrays.coordinates[queries], train=train)
            return method.formula(some, self.fitted.absolute(damping))
        return method.formula(arrays, 0.0)[self.chosen][queries, train]


def inputs_of(opened: Opened, method: Method, queries: slice = EVERY) -> Iterator[Input]:
    """Yield the inputs of a method's formula, for all queries or for some."""
    settings = opened.question.settings
    match method.needs:
        case Gradients():
            yield from _of_gradients(opened, method, method.needs, queries)
        case Pixels():
            pixels = InputRows(opened.inputs("queries"))
            asked = pixels.at(range(len(pixels))[queries]).numpy()
            yield Input(Vectors(InputRows(opened.inputs("train")), asked))
        case Embeddings():
            vectors = opened.embeddings("queries")[queries, None]
            yield Input(Vectors(ArrayRows(opened.embeddings("train")), vectors))
        case NoisedPixels():
            yield Input(_noised(opened, queries))
        case Outcomes():
            first = slice(settings.retrained_count)
            losses = opened.benchmark.losses_of(opened.images("queries"), settings.output)[first, queries]
            yield Input(RetrainedLosses(opened.benchmark.masks[first], losses))
        case Nothing():
            counts = Counts(len(opened.images("queries")), len(opened.images("train")), settings.seed)
            yield Input(counts, chosen=queries)
        case _:
            raise UsageError(f"{method.name}: its needs are {method.needs!r}, which is none of those in dtrak.methods")


def _of_gradients(opened: Opened, method: Method, needs: Gradients, queries: slice) -> Iterator[Input]:
    settings = opened.question.settings
    spec = spec_of(method, settings)
    side: depends.Side = "trajectories" if needs.queries == "trajectories" else "queries"
    for member in range(len(opened.members(needs.models))):
        train = opened.stores(spec, "train", member)
        asked = {} if opened.question.queries is None else opened.stores(spec, side, member)
        first: Fitted | None = None
        for objectives in objective_groups(method, settings):
            rows = CopyRows([train[one] for one in objectives], needs.unit)
            if not asked:  # an index needs the kernel alone
                fitted = fitted_kernel(opened, method, spec, member, objectives, None, first)
                first = first or fitted
                yield Input(None, fitted)
                continue
            of_queries = CopyRows([asked[one] for one in objectives], needs.unit)[queries]
            if method.kernel is None:
                yield Input(Vectors(rows, of_queries))
                continue
            if isinstance(method.kernel, Ridge) and not method.kernel.pooled:
                for copy in range(of_queries.shape[1]):
                    fitted = fitted_kernel(opened, method, spec, member, objectives, copy)
                    part = fitted.kernel.coordinates(of_queries[:, copy : copy + 1])
                    residuals = _residuals(opened, spec)[:, copy] if method.kernel.residuals else None
                    yield Input(KernelInput(fitted.kernel, part, EVERY, residuals), fitted)
                continue
            fitted = fitted_kernel(opened, method, spec, member, objectives, None, first)
            first = first or fitted
            yield Input(KernelInput(fitted.kernel, fitted.kernel.coordinates(of_queries), EVERY), fitted)


def objective_groups(method: Method, settings: Settings) -> list[tuple[str, ...]]:
    """Return the objectives of each kernel: all side by side if copies are apart, else one for each."""
    every = objectives_of(method, settings)
    apart = isinstance(method.needs, Gradients) and method.needs.copies == "apart"
    return [every] if apart else [(one,) for one in every]


def fitted_kernel(
    opened: Opened,
    method: Method,
    spec: Spec,
    member: int,
    objectives: Sequence[str],
    copy: int | None = None,
    first: Fitted | None = None,
) -> Fitted:
    """Fit the kernel of some objectives, or of one copy, or open it. The λ of later ones follow that of the `first`."""
    record, needs, settings = method.kernel, method.needs, opened.question.settings
    part = depends.of_kernel(opened.facts, method, spec, objectives, member, copy)
    damping = Damping.parse(settings.damping)
    rule = rule_of(method)
    assert rule is not None
    assert isinstance(needs, Gradients)
    one_damping = opened.one_damping and first is None and not damping.needs_eigenvalues(rule)

    def make() -> Fitted:
        train = opened.stores(spec, "train", member)
        every = CopyRows([train[one] for one in objectives], needs.unit)
        rows: Rows = every if copy is None else OneRow(every, copy)
        kernel: Kernel
        kept = None
        match record:
            case Ridge():
                folder = opened.folder / "kernels" / hash_of(part)
                fit, kept = kept_ridge(folder, [hash_of(part)], rows, one_damping)
                kernel = fit()
            case Kronecker():
                kernel = KroneckerKernel(opened.directions(spec, train[objectives[0]]), rows)
            case str():
                kernel = KERNELS.choose(record)(rows)
            case _:
                assert callable(record)
                kernel = record(rows)
        other = compared_objective(objectives[0])

        def compared() -> Kernel:
            return fitted_kernel(opened, method, spec, member, [other]).kernel

        compares = rule == "agreement" and other in train

        def find(damping: Damping) -> float:
            if first is not None:
                return damping_as_of(first.kernel, first.absolute(damping), kernel)
            copies = 1 if needs.copies == "averaged" or copy is not None else rows.shape[0]
            compared_with = compared if compares else None
            return damping.absolute(kernel, lambda one: automatic(rule, one, copies, objectives[0], compared_with))

        follows = hash_of(depends.of_kernel(opened.facts, method, spec, [other], member, None)) if compares else ""
        return Fitted(kernel, find, kept, first.name if first is not None else follows, hash_of(part))

    if spec.models != "final":  # the kernels of several models could fill the memory
        return make()
    return opened.once(["kernel", part, one_damping, None if first is None else first.name], make)


def _residuals(opened: Opened, spec: Spec) -> Any:
    """Return how far the prediction for every copy of the training images is from its target, [N, C]."""
    return opened.once(["residuals", spec.facts], lambda: opened.residuals(spec))


def _noised(opened: Opened, queries: slice) -> NoisedQueries:
    """Return noised copies of some queries, as in training."""
    settings, model, asked = opened.question.settings, opened.model(), opened.inputs("queries")
    rows = range(len(asked))[queries]
    steps = timesteps_of(model, settings.timesteps, "visible")
    copies = Copies(steps, settings.draws, settings.noise, settings.seed)
    names = asked.named().names if settings.noise == "per-image" else [""] * len(asked)
    noises = torch.stack([copies.noises(model.shape, names[row]) for row in rows], 1)
    t = torch.tensor([timestep for timestep, _ in copies.pairs()])
    signal, sigma = (one.flatten() for one in model.process.signal_and_noise(t))
    of_copies = (len(noises), 1, 1, 1, 1)
    noised = signal.view(of_copies) * asked.tensor(rows) + sigma.view(of_copies) * noises
    return NoisedQueries(InputRows(opened.inputs("train")), noised, signal, sigma)


@dataclass(frozen=True, eq=False)
class InputRows:
    """The images as rows of the numbers that the model takes, [N, 1, k], read in blocks."""

    images: ModelInputs

    @property
    def shape(self) -> tuple[int, int]:
        return 1, int(np.prod(self.images.shape))

    def __len__(self) -> int:
        return len(self.images)

    def blocks(self, wanted: range | None = None) -> Iterator[tuple[range, Tensor]]:
        wanted = range(len(self)) if wanted is None else wanted
        for start in range(0, len(wanted), IMAGES_AT_ONCE):
            rows = wanted[start : start + IMAGES_AT_ONCE]
            yield rows, self.at(rows)

    def at(self, places: Sequence[int]) -> Tensor:
        pixels: Tensor = self.images.tensor(places)
        return pixels.flatten(1)[:, None]
