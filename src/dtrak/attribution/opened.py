"""A question with its sources open. All that an answer is made of is made here once: models and their inputs, stores of
features, embeddings. Each is known by its part (`depends.py`), in memory and in the folder."""

import re
import shutil
import time
from collections.abc import Callable, Mapping
from copy import copy as shallow_copy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dtrak.attribution import depends
from dtrak.attribution.benchmark_folder import Benchmark
from dtrak.attribution.question import Question
from dtrak.attribution.required_gradients import (
    Required,
    compared_objectives,
    objective_of,
    objectives_of,
    required_gradients,
    spec_of,
)
from dtrak.devices import total_memory
from dtrak.engines import Engine
from dtrak.errors import UsageError
from dtrak.features.curvature_pass import kept_directions
from dtrak.features.encoders import Encoder, embed, load_encoder
from dtrak.features.featurizing import featurize, residuals_of
from dtrak.features.model_inputs import ModelInputs, model_inputs
from dtrak.features.spec import Spec
from dtrak.features.store import Cost, FeatureStore
from dtrak.features.trajectories import Trajectories
from dtrak.files import Remembered
from dtrak.fingerprints import Facts, hash_of, of_object
from dtrak.gradients.copies import timesteps_of
from dtrak.gradients.kronecker_factors import Directions
from dtrak.images.images import Images, ImageSource
from dtrak.methods.method import Embeddings, Gradients, Kronecker, Method, Outcomes, Ridge
from dtrak.models import DiffusionModel
from dtrak.models.model_source import ModelSource
from dtrak.noise import stable_hash
from dtrak.progress import say

Made = TypeVar("Made")
Stores = Mapping[str, FeatureStore]  # by objective
DRAWS_AT_ONE_STEP = 10  # how many noises journey-trak takes if it scores one timestep alone
FEWEST_MODELS = 4  # outcomes are compared of at least this many
BYTES_ON_DISK, BYTES_IN_MEMORY = 4, 24  # of whole gradients: for each parameter, of a training image and of a query


class Opened:
    """An open question. Everything is made when it is first needed.

    The facts are those of now, unless they are given: an index has those that it was made with, and the features of its
    training images (`train_stores`). What is opened then must have the same facts. `one_damping` says that scores are
    asked for one λ: then kernels are ready sooner.
    """

    def __init__(
        self,
        question: Question,
        folder: Path,
        *,
        device: str | None = None,
        engine: Engine | None = None,
        facts: Facts | None = None,
        one_damping: bool = False,
        train_stores: Stores | None = None,
    ) -> None:
        self.question, self.folder, self.queries_folder = question, folder, folder
        self.device, self.engine, self.one_damping = device, engine, one_damping
        self._given_facts, self._train_stores = facts, train_stores
        if facts is not None:
            self.facts = facts
        self._shared: dict[str, Any] = {}  # what does not depend on the queries
        self._of_queries: dict[str, Any] = {}

    def with_queries(self, queries: ImageSource, folder: Path | None = None) -> "Opened":
        """Return the same question for other queries. What does not depend on queries is shared.

        A `folder` keeps all that is made of these queries apart, so that it can be removed.
        """
        other = shallow_copy(self)
        other.question = replace(self.question, queries=queries)
        other.queries_folder = folder or self.folder
        other._of_queries = {}
        if "facts" in vars(other):
            other.facts = {**self.facts, "queries": queries.facts}
        return other

    def remember(self) -> None:
        """Keep what was found in image files; a refused question leaves nothing."""
        for source in (self.question.train, self.question.queries):
            if source is not None and isinstance(source.memory, Remembered):
                source.memory.save()

    def once(self, part: Any, make: Callable[[], Made], of_queries: bool = False) -> Made:
        """Return what `make` makes of these facts; it is called once for equal ones."""
        kept, name = self._of_queries if of_queries else self._shared, hash_of(part)
        if name not in kept:
            kept[name] = make()
        made: Made = kept[name]
        return made

    # what was asked about

    @cached_property
    def facts(self) -> Facts:
        """The facts of the question: a tree of plain values, read now."""
        question, settings = self.question, self.question.settings
        kinds = {"final"} | {one.needs.models for one in question.methods if isinstance(one.needs, Gradients)}
        objectives = {
            name
            for required in self.required.values()
            for name in (*required.train, *required.queries, *required.trajectories)
        }
        now: dict[str, Any] = {
            "model": self.model().facts,
            "train": question.train.facts,
            "queries": None if question.queries is None else question.queries.facts,
            "settings": settings.facts,
            "objectives": {name: of_object(objective_of(name, settings)) for name in sorted(objectives)},
            "methods": {one.name: self.method_facts(one) for one in question.methods},
            "members": {
                kind: [self._member_facts(kind, member) for member in range(len(self.members(kind)))] for kind in kinds
            },
            "encoder": None,
            "outcomes": None,
        }
        if any(isinstance(one.needs, Embeddings) for one in question.methods):
            now["encoder"] = of_object(self.encoder)
        if any(isinstance(one.needs, Outcomes) for one in question.methods):
            now["outcomes"] = self.benchmark.fingerprint
        return now

    def method_facts(self, method: Method) -> dict[str, Any]:
        settings = self.question.settings
        is_plain = isinstance(method.kernel, Ridge | Kronecker | str | None)
        return {
            "needs": repr(method.needs),
            "formula": of_object(method.formula),
            "kernel": repr(method.kernel) if is_plain else of_object(method.kernel),
            "square": method.square,
            "objectives": list(objectives_of(method, settings)),
            "spec": spec_of(method, settings).facts if isinstance(method.needs, Gradients) else None,
        }

    def _member_facts(self, kind: str, member: int) -> dict[str, Any]:
        source = self.members(kind)[member].source
        named = {} if kind == "final" else {"name": Path(str(source)).name}  # its projection is seeded by its name
        return {**self.model(kind, member).facts, **named}

    @cached_property
    def required(self) -> dict[Spec, Required]:
        """The gradients that all methods need together."""
        return required_gradients(self.question.methods, self.question.settings)

    def members(self, kind: str) -> list[ModelSource]:
        """Return the models that gradients are computed with."""
        settings = self.question.settings
        match kind:
            case "checkpoints":
                found = evenly_spaced(settings.checkpoints, settings.checkpoint_count)
            case "retrained":
                subsets = settings.retrained_count or len(self.benchmark.masks)
                kept = [path for subset, path in self.benchmark.retrained.items() if subset < subsets]
                if not kept:
                    said = f"{self.benchmark.folder} did not keep its retrained models: make it with --keep-models"
                    raise UsageError(said)
                found = kept[: settings.ensemble_size]
            case _:
                return [self.question.model]
        return [ModelSource(str(path)) for path in found]

    def model(self, kind: str = "final", member: int = 0) -> DiffusionModel:
        """Return one of the models, for the shape of the training images. Of several, only the last stays in memory."""
        if kind == "final":
            return self.once("model", lambda: self._opened_model(self.question.model))
        source = self.members(kind)[member]
        kept: dict[str, DiffusionModel] = self.once("member", dict)
        if source.source not in kept:
            kept.clear()
            kept[str(source.source)] = self._opened_model(source)
        return kept[str(source.source)]

    def _opened_model(self, source: ModelSource) -> DiffusionModel:
        given, train = self._given_facts, self.question.train
        shape = train.open().shape if given is None else tuple(given["train"]["shape"])
        found = source.open(shape, self.device)
        if given is not None and (changed := depends.what_changed({"model": given["model"]}, {"model": found.facts})):
            raise UsageError(f"{source.source} is not the model that {self.folder} was made with: {changed}")
        return found

    def images(self, side: depends.Side) -> Images:
        source = self.question.train if side == "train" else self.question.queries
        assert source is not None, "this question has no queries"
        return source.open()

    def inputs(self, side: depends.Side) -> ModelInputs:
        """Return the images of a side as the inputs of the model."""
        apart = side != "train" and self.queries_folder != self.folder
        folder = self.queries_folder if apart else Path(self.question.settings.latents or self.folder / "latents")
        model, images = self.model(), self.images(side)
        if side == "train" and model.conditions is not None:
            model.conditions.check(images)  # before any work
        make = partial(model_inputs, model, images, folder)
        return self.once(f"inputs of {side}", make, side != "train")

    def trajectories(self) -> Trajectories:
        """Return the trajectories along which the queries were drawn."""
        wanted = self.question.settings
        drawn = wanted.ddim_steps, wanted.step, wanted.guidance
        return self.once("trajectories", lambda: Trajectories(self.model(), self.images("queries"), *drawn), True)

    # what is made of it

    def stores(self, spec: Spec, side: depends.Side, member: int = 0, share: tuple[int, int] | None = None) -> Stores:
        """Return the features of one side by one of the models, for all objectives that the methods need of them.

        What a folder has is not computed again. With a `share`, only that share of the training images is.
        """
        if side == "train" and self._train_stores is not None:
            return self._train_stores
        objectives = getattr(self.required[spec], side)
        parts = {one: depends.of_features(self.facts, spec, one, side, member) for one in objectives}

        def make() -> Stores:
            settings, asked = self.question.settings, spec
            if spec.models != "final":  # each model has a projection of its own
                name = self.facts["members"][spec.models][member]["name"]
                asked = replace(asked, projection_seed=stable_hash(f"{settings.seed} {name}") >> 1)
            if side == "trajectories" and settings.step is not None:
                asked = replace(asked, draws=DRAWS_AT_ONE_STEP)
            folder = self.folder if side == "train" else self.queries_folder
            return featurize(
                self.model(spec.models, member),
                self.trajectories() if side == "trajectories" else self.inputs(side),
                asked,
                {one: objective_of(one, settings) for one in objectives},
                {one: (folder / f"{side}-{one}", part) for one, part in parts.items()},
                engine=self.engine,
                batch_size=settings.batch_size,
                skip_bad=settings.skip_bad,
                share=share,
            )

        return self.once([side, parts], make, side != "train")

    def fill_share(self, share: tuple[int, int]) -> None:
        """Compute one share of all features of training images that the methods need, and nothing else."""
        for spec in self.required:
            for member in range(len(self.members(spec.models))):
                self.stores(spec, "train", member, share)

    def directions(self, spec: Spec, store: FeatureStore) -> Directions:
        """Return the Kronecker directions of the training images; those that the store left out do not count."""
        inputs, settings, bad = self.inputs("train"), self.question.settings, store.left_out()
        if bad:
            inputs = inputs.select([row for row in range(len(inputs)) if row not in set(bad)])
        part = {**depends.of_passes(self.facts, spec, "layers"), "left_out": bad}
        return kept_directions(self.model(), inputs, spec, self.folder, part, settings.batch_size)

    def residuals(self, spec: Spec) -> NDArray[np.float32]:
        """Return how far the prediction for every copy of the training images is from its target, [N, C]."""
        part = depends.of_passes(self.facts, spec)
        return residuals_of(self.model(), self.inputs("train"), spec, self.folder, part)

    def cost(self, method: Method) -> Cost:
        """Return what the features of a method took; objectives that share passes share their cost. Make them first."""
        needs, settings = method.needs, self.question.settings
        if isinstance(needs, Embeddings):
            started = time.perf_counter()
            for side in ("train", "queries"):
                self.embeddings("train" if side == "train" else "queries")
            return Cost(time.perf_counter() - started)
        if not isinstance(needs, Gradients):
            return Cost()
        spec, own = spec_of(method, settings), objectives_of(method, settings)
        of_train = dict.fromkeys([*own, *compared_objectives(method, settings)])
        asked: depends.Side = "trajectories" if needs.queries == "trajectories" else "queries"
        total = Cost()
        for member in range(len(self.members(needs.models))):
            train, queries = (self.stores(spec, side, member) for side in ("train", asked))
            total = sum((train[one].cost for one in of_train), total)
            total = sum((queries[one].cost for one in own), total)
        return total

    def embeddings(self, side: depends.Side) -> NDArray[np.float32]:
        """Return the embeddings of the images of a side, [N, d]."""
        part, folder = depends.of_embeddings(self.facts, side), self.folder if side == "train" else self.queries_folder
        make = partial(embed, self.encoder, self.images(side), folder, part)
        return self.once(["embeddings", part], make, side != "train")

    @cached_property
    def encoder(self) -> Encoder:
        given, device = self.question.settings.encoder, str(self.model().device)
        return load_encoder(given, device) if isinstance(given, str) else given("", device)

    @cached_property
    def benchmark(self) -> Benchmark:
        """The folder of retrained models that methods learn from; one of other training images is refused."""
        retrained = self.question.settings.retrained
        if retrained is None:
            raise UsageError("there are no retrained models: give a benchmark folder as --retrained")
        found = Benchmark.open(retrained)
        found.check_train(self.images("train"))
        return found


def evenly_spaced(folder: str | Path | None, count: int) -> list[Path]:
    """Return `count` evenly spaced models of a folder and always the last, ordered by the numbers in their names."""
    if folder is None:
        raise UsageError("there are no checkpoints of the training: give their folder as --checkpoints")
    found = [path for path in Path(folder).glob("[!.]*") if path.is_dir()]
    if not found:
        raise UsageError(f"no checkpoints in {folder}: it holds no folders of models")
    found.sort(key=lambda path: ([int(number) for number in re.findall(r"\d+", path.name)], path.name))
    ends = np.linspace(0, len(found), min(count, len(found)) + 1)[1:]
    return [found[round(end) - 1] for end in ends]


def check(opened: Opened, method: Method) -> None:
    """Raise an error if something that a method needs is missing, before any long work begins."""
    needs, settings = method.needs, opened.question.settings
    match needs:
        case Gradients():
            timesteps_of(opened.model(), settings.timesteps, needs.timesteps)
            opened.members(needs.models)
            if needs.queries == "trajectories":
                opened.trajectories().check()
            if isinstance(method.kernel, Kronecker):
                _check_room(opened)
        case Embeddings():
            _ = opened.encoder
        case Outcomes():
            losses = opened.benchmark.losses_of(opened.images("queries"), settings.output)[: settings.retrained_count]
            if len(losses) < FEWEST_MODELS:
                said = f"there must be at least {FEWEST_MODELS}"
                raise UsageError(f"{len(losses)} retrained models are too few to compare: {said}")


def _check_room(opened: Opened) -> None:
    """Refuse whole gradients of more parameters than the disk or the memory can hold."""
    model, settings = opened.model(), opened.question.settings
    numbers = sum(value.numel() for value in model.parameters(settings.parameters).values())
    there = next(folder for folder in (opened.folder, *opened.folder.absolute().parents) if folder.exists())
    disk, memory = shutil.disk_usage(there).free, total_memory(model.device) / 2
    for side, size, room, where in (
        ("train", BYTES_ON_DISK, disk, "on the disk"),
        ("queries", BYTES_IN_MEMORY, memory, "in half of the memory"),
    ):
        images = opened.images("train" if side == "train" else "queries")
        if size * numbers * len(images) > room:
            raise UsageError(
                f"whole gradients of {len(images):,} images and {numbers:,} parameters take "
                f"{size * numbers * len(images) / 1e9:,.1f} GB, but there are {room / 1e9:,.1f} GB {where}: "
                "give fewer --parameters"
            )


def checked(opened: Opened) -> Opened:
    """Return an open question of which nothing is missing."""
    for method in opened.question.methods:
        check(opened, method)
    return opened


def possible(opened: Opened) -> Opened:
    """Return the question with those methods alone whose needs are met; say what the others lack."""
    found = []
    for method in opened.question.methods:
        try:
            check(opened, method)
            found.append(method)
        except UsageError as error:
            say(f"Left out: {method.name}: {error}")
    other = shallow_copy(opened)
    other.question = replace(opened.question, methods=tuple(found))
    for name in ("required", "facts"):  # those of all methods
        vars(other).pop(name, None)
    return other
