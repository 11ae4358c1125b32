"""What methods score from: pixels, embeddings, gradients, losses of retrained models. Each is made once, for all.

A method says by its source what it needs, and `Evidence` makes the arrays that its formula sees. Gradients that several
methods need are computed in one pass and lie in one store.
"""

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dtrak.benchmark import Benchmark
from dtrak.damping import Damping, partner_of
from dtrak.data import Images
from dtrak.encoders import DEFAULT_ENCODER, Encoder, embed, load_encoder
from dtrak.engines import Engine
from dtrak.errors import UsageError
from dtrak.features import Cost, FeatureStore
from dtrak.featurizing import FeatureSettings, featurize
from dtrak.files import as_npy, write_bytes
from dtrak.journeys import Journeys
from dtrak.kernels import Kernel, decompose
from dtrak.methods import Method, objectives_of
from dtrak.methods.inputs import Counts, InMemory, RetrainedLosses, Vectors
from dtrak.methods.method import Embeddings, Gradients, Models, Outcomes, Pixels, Values
from dtrak.methods.retraining import check_enough
from dtrak.models import DiffusionModel, View, load_model
from dtrak.noise import stable_hash
from dtrak.progress import say

Stores = dict[str, dict[str, FeatureStore]]  # by images (train, queries, journey) and objective
IMAGES_AT_ONCE = 64  # whose pixels are read
DRAWS_AT_ONE_STEP = 10  # noises where journey-trak asks about one step alone


@dataclass(frozen=True)
class Resources:
    """What some methods need beside the model and the images."""

    checkpoints: Path | None = None  # a folder of models, as training left them on its way
    checkpoint_count: int = 4  # how many of them, evenly spaced
    retrained: Path | None = None  # a benchmark folder
    subsets: int | None = None  # only the models of its first so many subsets
    output: str = "simple"  # the objective that its losses are of
    ensemble_size: int = 8  # how many of them an ensemble has
    encoder: str = DEFAULT_ENCODER
    ddim_steps: int = 50  # in which the queries were drawn
    step: int | None = None  # the timestep at which journey-trak asks; all of them if None
    guidance: float | None = None  # with which the queries were drawn
    latents: Path | None = None  # a folder that keeps what an autoencoder made of images; that of the features if None


@dataclass(frozen=True, eq=False)
class Evidence:
    """The arrays behind some methods' scores of training images for queries."""

    model: DiffusionModel
    train: Images
    queries: Images
    methods: Sequence[Method]
    objective: str | None  # of the methods that have the choice
    settings: FeatureSettings
    resources: Resources
    folder: Path  # that keeps features
    engine: Engine | None = None  # that computes gradients; this process if None
    with_partners: bool = False  # whether damping will compare each objective with another
    queries_folder: Path | None = None  # that keeps what is made of the queries; `folder` if None
    _made: dict[Any, Any] = field(default_factory=dict)
    _of_training: dict[Any, Any] = field(default_factory=dict)  # what was made whatever the queries
    _seconds: dict[Any, float] = field(default_factory=dict)  # that what was made has taken

    def scores(self, method: Method, damping: Damping) -> Values:
        """The mean of the method's formula over its models, [Q, N]."""
        return self.scores_for(method, [damping])[0]

    def scores_for(self, method: Method, dampings: Sequence[Damping]) -> list[Values]:
        """The scores for each of several dampings, at the price of one decomposition for each of its models."""
        totals: list[Values] = []
        models = 0
        for one in self.inputs(method):
            found = [method.formula(one, damping) for damping in dampings]
            totals = [total + more for total, more in zip(totals, found, strict=True)] if totals else found
            models += 1
        return [total / np.float32(models) for total in totals]

    def self_influence(self, method: Method, damping: Damping) -> NDArray[np.float32] | None:
        """τ(x^n)_n of the method's kernel, [N]; None unless that is the kernel of the model itself."""
        if not (method.damped and isinstance(method.source, Gradients) and method.source.models == "final"):
            return None
        found = [one.kernel.self_influence(one.absolute(damping)) for one in self.inputs(method)]
        return np.asarray(np.mean(found, axis=0), dtype=np.float32)

    def inputs(self, method: Method) -> Iterator[Any]:
        """What the method's formula sees: one input for each of its models and objectives."""
        match method.source:
            case Pixels():
                yield self._once("pixels", self._pixels)
            case Embeddings():
                yield self._once("embeddings", self._embeddings)
            case Outcomes():
                yield self._outcomes
            case Gradients(models=models, journey=journey):
                first, *others = objectives_of(method, self.objective)
                for member in range(len(self._folders(models))):
                    leader = self._vectors(models, member, first, journey)
                    yield leader
                    for objective in others:
                        yield self._vectors(models, member, objective, journey, leader)
            case _:
                yield Counts(len(self.queries), len(self.train), self.settings.seed)

    def cost(self, method: Method) -> Cost:
        """Of the features behind a method's scores, shared ones in parts."""
        if not isinstance(method.source, Gradients):
            return Cost()
        objectives, models = objectives_of(method, self.objective), method.source.models
        side = "journey" if method.source.journey else "queries"
        wanted = [(images, objective) for images in ("train", side) for objective in objectives]
        if self.with_partners and method.damped:
            wanted.append(("train", partner_of(objectives[0])))
        members = [self._stores(models, member) for member in range(len(self._folders(models)))]
        return sum((stores[images][one].cost for stores in members for images, one in wanted), Cost())

    def seconds(self, method: Method) -> float:
        """That a method's inputs have taken, in this process or in an earlier one; makes them if they are not there."""
        match method.source:
            case Gradients():
                cost = self.cost(method)
                return cost.gradients + cost.projection
            case Embeddings():
                self._once("embeddings", self._embeddings)
                return self._seconds["embeddings"]
            case _:
                return 0.0

    def retrained_models(self, method: Method) -> int:
        """How many of them are behind a method's scores."""
        match method.source:
            case Outcomes():
                return len(self._outcomes.masks)
            case Gradients(models="retrained"):
                return len(self._folders("retrained"))
            case _:
                return 0

    def asking(self, queries: Images, folder: Path | None = None) -> "Evidence":
        """The same about other queries; what is made of the training images, now or later, serves both.

        With a `folder`, all that is made of the queries is kept there and nowhere else, so that it can be removed.
        """
        self.model.check_fits(queries.shape, queries.source)
        return replace(self, queries=queries, queries_folder=folder, _made={}, _seconds={})

    def check(self, method: Method) -> None:
        """Say what the method lacks, before anything takes its time."""
        match method.source:
            case Embeddings():
                _ = self._encoder
            case Outcomes():
                check_enough(self._outcomes)
            case Gradients(models=models, journey=journey):
                self._folders(models)
                if journey:
                    self._journeys.check()

    def of_what_there_is(self) -> "Evidence":
        """The same for those of the methods that lack nothing; says what the others lack."""
        there = []
        for method in self.methods:
            try:
                self.check(method)
                there.append(method)
            except UsageError as error:
                say(f"Left out: {method.name}: {error}")
        return replace(self, methods=there)

    @property
    def _encoder(self) -> Encoder:
        make = partial(load_encoder, self.resources.encoder, str(self.model.device))
        found: Encoder = self._once_for_all("encoder", make)
        return found

    def _once(self, key: Any, make: Any) -> Any:
        if key not in self._made:
            started = time.perf_counter()
            self._made[key] = make()
            self._seconds[key] = time.perf_counter() - started
        return self._made[key]

    def _once_for_all(self, key: Any, make: Any) -> Any:
        """What does not depend on the queries."""
        if key not in self._of_training:
            self._of_training[key] = make()
        return self._of_training[key]

    def _pixels(self) -> Vectors:
        train, queries = self._view("train"), self._view("queries")
        return Vectors(InputRows(train), queries.tensor(range(len(queries))).flatten(1).numpy())

    def _view(self, of: Literal["train", "queries"]) -> View:
        """Images as the model sees them; all models of a question see them alike."""
        folder = self.resources.latents or self.folder / "latents"
        if of == "train":
            view: View = self._once_for_all("view", partial(self.model.view, self.train, folder))
        else:
            folder = folder if self.queries_folder is None else self.queries_folder / "latents"
            view = self._once("view", partial(self.model.view, self.queries, folder))
        return view

    def _embeddings(self) -> Vectors:
        train = self._embedded(self.train, self.folder)
        return Vectors(InMemory(train), self._embedded(self.queries, self.queries_folder or self.folder))

    def _embedded(self, images: Images, folder: Path) -> NDArray[np.float32]:
        """[N, d], kept with the features."""
        name = f"embeddings-{stable_hash(self.resources.encoder):016x}-{images.fingerprint}.npy"
        path = folder / name
        if not path.exists():
            write_bytes(path, as_npy(embed(self._encoder, images)))
        return np.asarray(np.load(path, allow_pickle=False))

    @property
    def _outcomes(self) -> RetrainedLosses:
        found: RetrainedLosses = self._once("outcomes", self._read_outcomes)
        return found

    def _read_outcomes(self) -> RetrainedLosses:
        first = slice(self.resources.subsets)
        losses = self._benchmark.losses_of(self.queries, self.resources.output)
        return RetrainedLosses(self._benchmark.masks[first], losses[first])

    @property
    def _benchmark(self) -> Benchmark:
        found: Benchmark = self._once_for_all("benchmark", self._open_benchmark)
        return found

    def _open_benchmark(self) -> Benchmark:
        if self.resources.retrained is None:
            raise UsageError("there are no retrained models: give a benchmark folder as --retrained")
        benchmark = Benchmark.open(self.resources.retrained)
        benchmark.check_train(self.train)
        return benchmark

    @property
    def _journeys(self) -> Journeys:
        resources = self.resources
        make = partial(Journeys, self.model, self.queries, resources.ddim_steps, resources.step, resources.guidance)
        found: Journeys = self._once("journeys", make)
        return found

    def _folders(self, models: Models) -> list[Path | None]:
        """Where the models lie whose gradients count; None is the model itself."""
        match models:
            case "final":
                return [None]
            case "checkpoints":
                return [*evenly_spaced(self.resources.checkpoints, self.resources.checkpoint_count)]
            case "retrained":
                subsets = self.resources.subsets or len(self._benchmark.masks)
                found = [path for subset, path in self._benchmark.retrained.items() if subset < subsets]
                if not found:
                    raise UsageError(
                        f"{self._benchmark.folder} did not keep its retrained models: make it with --keep-models"
                    )
                return [*found[: self.resources.ensemble_size]]

    def _vectors(
        self, models: Models, member: int, objective: str, journey: bool, leader: Vectors | None = None
    ) -> Vectors:
        make = partial(self._gradients, models, member, objective, journey, leader)
        # Several models' kernels would fill the memory; one model's serves many questions.
        found: Vectors = self._once((objective, journey, leader is None), make) if models == "final" else make()
        return found

    def _gradients(self, models: Models, member: int, objective: str, journey: bool, leader: Vectors | None) -> Vectors:
        stores = self._stores(models, member)
        train, queries = stores["train"][objective], stores["journey" if journey else "queries"][objective]

        def kernel(of: str) -> Kernel:
            make = partial(decompose, stores["train"][of])
            found: Kernel = self._once_for_all(("kernel", of), make) if models == "final" else make()
            return found

        partner = partial(kernel, partner_of(objective)) if self.with_partners and leader is None else None
        return Vectors(train, queries.numpy(), partial(kernel, objective), partner, leader)

    def _stores(self, models: Models, member: int) -> Stores:
        found: Stores = self._once((models, member), partial(self._featurize, models, member))
        return found

    def _featurize(self, models: Models, member: int) -> Stores:
        """The stores of one model for all methods that need it, by images and objective."""
        path = self._folders(models)[member]
        wanted: dict[bool, dict[str, None]] = {False: {}, True: {}}  # by whether along the journey
        partners: dict[str, None] = {}
        for method in self.methods:
            if isinstance(method.source, Gradients) and method.source.models == models:
                objectives = objectives_of(method, self.objective)
                wanted[method.source.journey] |= dict.fromkeys(objectives)
                if self.with_partners and method.damped:
                    partners[partner_of(objectives[0])] = None
        model, settings, folder = self.model, self.settings, self.folder
        of_queries = self.queries_folder or folder
        if path is not None:
            model = load_model(str(path)).fitted_to(self.train.shape).to(self.model.device)
            folder, of_queries = folder / path.name, of_queries / path.name
            settings = replace(settings, projection_seed=stable_hash(f"{settings.seed} {path.name}") >> 1)
        make = partial(featurize, model, folder=of_queries, engine=self.engine)
        of_train = [*wanted[False] | wanted[True] | partners]
        of_training = partial(make, self._view("train"), of_train, settings, name="train", folder=folder)
        stores = {"train": self._once_for_all(("train", models, member), of_training)}
        if wanted[False]:
            name = f"queries-{self.queries.fingerprint[:8]}"
            stores["queries"] = make(self._view("queries"), [*wanted[False]], settings, name=name)
        if wanted[True]:
            if self.resources.step is not None:
                settings = replace(settings, draws=DRAWS_AT_ONE_STEP)
            name = f"journeys-{self._journeys.fingerprint[:8]}"
            stores["journey"] = make(self._journeys, [*wanted[True]], settings, name=name)
        return stores


def evenly_spaced(folder: Path | None, count: int) -> list[Path]:
    """`count` of the models in a folder, the last among them, in the order of the numbers in their names."""
    if folder is None:
        raise UsageError("there are no checkpoints of the training: give their folder as --checkpoints")
    folder = Path(folder)
    found = [path for path in folder.glob("[!.]*") if path.is_dir()]
    if not found:
        raise UsageError(f"no checkpoints in {folder}: it holds no folders of models")
    found.sort(key=lambda path: ([int(number) for number in re.findall(r"\d+", path.name)], path.name))
    ends = np.linspace(0, len(found), min(count, len(found)) + 1)[1:]
    return [found[round(end) - 1] for end in ends]


@dataclass(frozen=True, eq=False)
class InputRows:
    """Images as `Rows` of what a model sees of them, pixels in [−1, 1] or latents, read in blocks."""

    view: View

    @property
    def dim(self) -> int:
        return int(np.prod(self.view.shape))

    def __len__(self) -> int:
        return len(self.view)

    def blocks(self) -> Iterator[tuple[range, Tensor]]:
        for start in range(0, len(self), IMAGES_AT_ONCE):
            rows = range(start, min(start + IMAGES_AT_ONCE, len(self)))
            yield rows, self.view.tensor(rows).flatten(1)
