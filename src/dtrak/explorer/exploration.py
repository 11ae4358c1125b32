"""Open a run for the explorer: its images, its sets of pictures, and their scores by every method, for any λ.

The run's question is opened once. When a set of pictures is prepared, one matrix product gives the scores of one
picture for all training images, of one training image for all pictures, or the sum over pictures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dtrak.attribution.answer import score, squared
from dtrak.attribution.formula_inputs import Fitted, Input, inputs_of
from dtrak.attribution.opened import Opened, check
from dtrak.attribution.required_gradients import objectives_of, rule_of, spec_of
from dtrak.attribution.scores import refuse_not_finite
from dtrak.attribution.settings import Settings
from dtrak.contracts import EVERY, Array, KernelInput, Values
from dtrak.engines import Engine
from dtrak.errors import DtrakError, UsageError
from dtrak.explorer.catalog import Catalog
from dtrak.images.images import Images, ImageSource
from dtrak.kernels.damping import Damping, UsedDamping, compared_objective
from dtrak.methods import EVERY_METHOD, Method, chosen_methods
from dtrak.progress import say
from dtrak.report.measured import trust_of, trust_words
from dtrak.runs.run import Run
from dtrak.runs.run_questions import last_question, opened_run, question_of, settings_of

MAX_VALIDATION = 200  # validation images that are shown


@dataclass(frozen=True, eq=False)
class Scored:
    """The scores of some pictures by one method, for every λ."""

    method: Method
    inputs: Sequence[Input] = ()  # one for each model and objective
    values: Values | None = None  # [Q, N], of a method without λ

    def scores(self, damping: Damping, queries: slice = EVERY, train: slice = EVERY) -> Values:
        """Return scores [Q, N], of all pictures and training images or of some."""
        if self.values is not None:
            return self.values[queries, train]
        of_each = [one.scores(self.method, damping, queries, train) for one in self.inputs]
        return squared(self.method, np.mean(of_each, axis=0)).astype(np.float32)

    def total(self, damping: Damping) -> Values:
        """Return the sum over all pictures, [N]: of linear scores, the scores of the summed pictures."""
        if self.values is not None or self.method.square or not self.method.linear:
            return np.asarray(self.scores(damping).sum(0))
        summed = []
        for one in self.inputs:
            assert isinstance(one.arrays, KernelInput)
            coordinates = one.arrays.coordinates.sum(0, keepdims=True)
            summed.append(replace(one, arrays=replace(one.arrays, coordinates=coordinates)))
        return np.asarray(replace(self, inputs=summed).scores(damping)[0])


@dataclass(frozen=True, eq=False)
class Exploration:
    """A run, its methods and their scores. Only one thread may call `prepare`; everything else is for any thread."""

    run: Run
    opened: Opened
    sets: Mapping[str, Catalog]
    usual_damping: str  # of the recipe
    trust: Mapping[str, str]  # how far to trust each method, in words
    kernels: dict[str, list[Fitted]] = field(default_factory=dict)  # by method; they do not depend on the pictures
    known: dict[tuple[str, str], Scored | UsageError] = field(default_factory=dict)  # by fingerprint and method

    @property
    def methods(self) -> dict[str, Method]:
        return {one.name: one for one in self.opened.question.methods}

    @property
    def damping(self) -> str:
        """The damping for requests that do not give one."""
        return str(self.opened.question.settings.damping)

    def scored(self, pictures: Images, method: Method) -> Scored | UsageError | None:
        """Return the scores; None if they are not prepared, and an error if the method cannot score these pictures."""
        return self.known.get((pictures.fingerprint, method.name))

    def prepare(self, pictures: Images, method: Method, folder: Path | None = None) -> None:
        """Compute features and scores of pictures, or read them; `folder` keeps what is made of them apart."""
        if self.scored(pictures, method) is not None:
            return
        found: Scored | UsageError
        try:
            opened = self.opened.with_queries(ImageSource(pictures), folder)
            check(opened, method)
            if method.kernel is None:
                (values,), _, _ = score(opened, method, [Damping()])
                refuse_not_finite(values, method.name, pictures.ids, opened.images("train").ids, "cannot score")
                found = Scored(method, values=values)
            else:
                found = Scored(method, list(inputs_of(opened, method)))
                kernels = [one.fitted for one in found.inputs if one.fitted is not None]
                for kernel in kernels:  # these keep the λ of each rule from now on, so that threads only read it
                    for rule in self.rules(method):
                        kernel.absolute(Damping.parse(rule))
                self.kernels[method.name] = kernels
        except UsageError as error:
            found = error
        self.known[pictures.fingerprint, method.name] = found

    def forget(self, pictures: Images) -> None:
        """Forget the scores of these pictures by all methods."""
        for method in self.methods:
            self.known.pop((pictures.fingerprint, method), None)

    def rules(self, method: Method) -> list[str]:
        """Return the rules for λ that a method can use: "auto" if the features that it compares are there."""
        settings = self.opened.question.settings
        compared = compared_objective(objectives_of(method, settings)[0])
        is_there = compared in self.opened.required[spec_of(method, settings)].train
        return ["auto", "spectrum"] if is_there or rule_of(method) != "agreement" else ["spectrum"]

    def self_influence(self, method: Method, damping: Damping, train: slice = EVERY) -> Array:
        """Return the self-influence τ(x^n)_n of all training images, or of some, [N]."""
        if not method.self_influence:
            raise UsageError(f"{method.name} has no self-influence: trak and d-trak have one")
        of_each = [one.kernel.squares(one.absolute(damping), 1, train) for one in self.kernels[method.name]]
        return squared(method, np.mean(of_each, axis=0))

    def used(self, method: Method, damping: Damping) -> UsedDamping | None:
        """Return λ for the kernel of the method's first model; None if there is none, or nothing was scored yet."""
        if method.name not in self.kernels:
            return None
        first = self.kernels[method.name][0]
        return UsedDamping.of(first.kernel, damping, first.absolute(damping))


def explore(
    run: Run,
    device: str,
    *,
    methods: str | None = None,
    typed: Mapping[str, Any] | None = None,
    cache: Path | None = None,
    engine: Engine | None = None,
) -> Exploration:
    """Open a run, with the question of its last scores, or else of its recipe, changed by those `typed`."""
    run.check_trained()
    asked, validation, sets, usual = run.asked, run.validation_source, dict[str, Catalog](), settings_of(run)
    sources = {}
    if (run.folder / "generated").exists():
        sources["generated"] = "generated pictures", run.query_source(str(run.folder / "generated"))
    if validation is not None:
        sources["validation"] = "validation images", validation
    attributed = None if asked is None else run.asked_about(asked)
    if attributed is not None and attributed not in [str(source.source) for _, source in sources.values()]:
        sources["attributed"] = "pictures attributed last", run.query_source(attributed)
    for name, (title, source) in sources.items():
        try:
            images = source.open()
        except UsageError as error:  # they may have been removed
            say(f"Left out: {title}: {error}")
            continue
        shown = images.select(range(min(MAX_VALIDATION, len(images)))) if name == "validation" else images
        sets[name] = Catalog(title, shown)
    first = next((one.parts[0].images for one in sets.values() if one.parts), run.train_images.select([0]))

    def opened(names: str | None, settings: Settings) -> Opened:
        changed = replace(settings, **(typed or {}))
        chosen = chosen_methods(methods or names, changed.objective)
        question = question_of(run, ImageSource(first), chosen, changed)
        every = (methods or names) == EVERY_METHOD
        return opened_run(run, question, cache=cache, device=device, engine=engine, every=every)

    as_recipe = None if run.is_elsewhere else run.recipe.attribution.method, usual
    try:
        last = last_question(run)
        names = None if last is None else ",".join(one.name for one in last.methods)
        found = opened(*as_recipe) if last is None else opened(names, last.settings)
    except DtrakError as error:  # files of the last attribution may have been removed
        if asked is None:
            raise
        say(f"Scores are computed as the recipe says, not as in the last attribution: {error}")
        found = opened(*as_recipe)
    measured = trust_of(run)
    trust = {one.name: trust_words(run, measured, one.name) for one in found.question.methods}
    return Exploration(run, found, sets, str(usual.damping), trust)
