"""A benchmark under study: what was measured of it is kept, so that a killed night goes on where it stopped."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dtrak import DiffusionModel
from dtrak.attribution.answer import score
from dtrak.attribution.benchmark_folder import Benchmark
from dtrak.attribution.opened import Opened, checked
from dtrak.attribution.question import Question
from dtrak.attribution.required_gradients import spec_of
from dtrak.attribution.settings import Settings
from dtrak.evaluation.comparison import compare
from dtrak.evaluation.lds import bootstrap, evaluate_lds, mean_lds
from dtrak.features.featurizing import featurize
from dtrak.features.model_inputs import model_inputs
from dtrak.files import write_text
from dtrak.gradients.objectives import OBJECTIVES, get_objective
from dtrak.images.images import Images, ImageSource
from dtrak.kernels import ArrayRows, Ridge
from dtrak.kernels.damping import GRIDS, Damping
from dtrak.methods import METHODS, Method
from dtrak.models import load_model
from dtrak.models.model_source import ModelSource
from dtrak.noise import gaussian, stable_hash
from dtrak.runs.run import RETRAINED, Run
from dtrak.tables import Cell


def probe(predicted: Tensor, noise: Tensor, elbo_weights: Tensor) -> Tensor:
    """An objective: mean u·ε_θ, with the same random u for all. It depends on the Jacobian, but on no loss."""
    u = gaussian(tuple(predicted.shape[1:]), "probe").to(predicted.device)
    return (predicted * u).flatten(1).mean(1)


OBJECTIVES.add("probe", probe)
ENCODER = "efficientnet-lite0"  # comes with the installation
MISSING = Cell(None, "–")
ASKED = ("queries", "output", "damping", "grid")  # of `compare` itself
TIMED, FEWEST, REPEATS = 600, 32, 3  # noised copies and images that a choice is timed on, and how often

Array = NDArray[np.float32]


def middles(count: int) -> str:
    """The middles of so many equal intervals of 1,000 timesteps, as a list."""
    return "".join(f"{(2 * one + 1) * 500 // count}," for one in range(count))


@dataclass(frozen=True)
class Measured:
    """An LDS, or a difference between two, in percent."""

    mean: float
    std: float  # of a bootstrap over subsets
    damping: float | None = None
    curve: tuple[tuple[float, float], ...] = ()  # (λ, LDS) where several λ were tried

    @property
    def cell(self) -> Cell:
        return Cell(self.mean, f"{self.mean:.1f} ± {self.std:.1f}")


@dataclass(frozen=True)
class Study:
    name: str
    benchmark: Benchmark
    folder: Path  # that keeps what was measured, and features
    run: Path | None = None  # whose model the benchmark is of, for its checkpoints
    device: str = "cpu"
    encoder: str = ENCODER
    dim: int | None = None  # k of every finding that does not say another; None means the default

    @property
    def query_kinds(self) -> list[str]:
        return [kind for kind in ("validation", "generated") if (self.benchmark.folder / f"{kind}.npz").exists()]

    @cached_property
    def model(self) -> DiffusionModel:
        return load_model(str(self.benchmark.folder / "model")).to(self.device)

    @property
    def checkpoints(self) -> dict[str, Path]:
        """The setting with which methods that need checkpoints find them, where there are some."""
        return {} if self.run is None else {"checkpoints": self.run / "checkpoints"}

    @property
    def drawn(self) -> dict[str, Any]:
        """The steps and the guidance that the pictures were drawn with, for methods that follow their trajectories."""
        if self.run is None:
            return {}
        generation = Run.open(self.run).recipe.generation
        return {"ddim_steps": generation.steps, "guidance": generation.guidance}

    @property
    def others(self) -> Benchmark | None:
        """The run's models that methods learn from, where `dtrak evaluate retrain` has made some."""
        folder = None if self.run is None else self.run / RETRAINED
        return Benchmark.open(folder) if folder is not None and (folder / "masks.npy").exists() else None

    def measure(
        self, methods: Sequence[str | Method], model: Path | None = None, **settings: Any
    ) -> dict[str, Measured]:
        """The LDS of each method, by `compare`; the paper takes the best damping in hindsight, and so does this."""
        settings = {"damping": "best", "encoder": self.encoder, **_given(settings)}
        names = tuple(one.name if isinstance(one, Method) else one for one in methods)

        def ask() -> str:
            cache, asked = self.cache(model, **settings), {name: settings[name] for name in ASKED if name in settings}
            wanted = self.settings(settings)
            return compare(self.benchmark, methods, cache, wanted, model=model, device=self.device, **asked).json()

        content = json.loads(self._once(ask, "compare", names, str(model), sorted(settings.items())))["methods"]
        return {
            name: Measured(one["lds"], one["bootstrap_std"], one["damping"], tuple(map(tuple, one["curve"])))
            for name, one in content.items()
        }

    @property
    def sets(self) -> dict[str, Images]:
        return {"train": self.benchmark.train} | {kind: self.benchmark.queries(kind) for kind in self.query_kinds}

    def features(self, objectives: Sequence[str], apart: bool = False, **settings: Any) -> dict[str, dict[str, Array]]:
        """{"train" or a kind of queries: {objective: [rows, k], or [rows, C, k] apart}}; forward passes are shared."""
        return {name: self.features_of(images, objectives, apart, **settings) for name, images in self.sets.items()}

    def features_of(
        self, images: Images, objectives: Sequence[str], apart: bool = False, **settings: Any
    ) -> dict[str, Array]:
        spec = spec_of(METHODS["step-trak" if apart else "trak"], self.settings(settings))
        inputs, cache = model_inputs(self.model, images), self.cache(None, **settings)
        places = {one: (cache / one, {"images": inputs.fingerprint, "spec": spec.facts}) for one in objectives}
        stores = featurize(self.model, inputs, spec, {one: get_objective(one) for one in objectives}, places)
        return {objective: store.numpy() for objective, store in stores.items()}

    def of_kernel(
        self, make: Callable[[], tuple[Array, Array]], *question: object, queries: str, output: str = "simple"
    ) -> Measured:
        """The LDS of the kernel of Φ [N, k] and φ(x) [Q, k], which are made unless the question was answered before."""

        def ask() -> str:
            train, asked = make()
            kernel = Ridge.of(ArrayRows(train))
            coordinates = kernel.coordinates(asked[:, None])
            values = [kernel.scores(coordinates, one.absolute(kernel)) for one in GRIDS["log"]]
            return json.dumps(self._best(values, queries, output))

        return Measured(**json.loads(self._once(ask, "kernel", question, queries, output)))

    def of_copies(
        self,
        objective: str,
        scores: Callable[[dict[str, Array], list[str]], dict[str, dict[str, list[Array]]]],
        ways: Sequence[str],
        **settings: Any,
    ) -> dict[str, dict[str, Measured]]:
        """For each kind of queries and each way, the LDS of scores from the features [rows, C, k] of every copy.

        `scores` gives them for each way and kind, with every λ; the best λ counts.
        """

        def ask() -> str:
            found = self.features([objective], apart=True, **settings)
            rows = {name: of_set[objective] for name, of_set in found.items()}
            made = scores(rows, self.query_kinds)
            return json.dumps(
                {kind: {way: self._best(made[way][kind], kind) for way in ways} for kind in self.query_kinds}
            )

        answers = json.loads(self._once(ask, "copies", objective, list(ways), sorted(settings.items())))
        return {kind: {way: Measured(**one) for way, one in found.items()} for kind, found in answers.items()}

    def of_curves(self, make: Callable[[], dict[str, list[Array]]], *question: object) -> dict[str, Measured]:
        """For each kind of queries, the LDS of scores that are made for several λ, with the best of these."""

        def ask() -> str:
            made = make()
            return json.dumps({kind: self._best(made[kind], kind) for kind in self.query_kinds})

        answers = json.loads(self._once(ask, "curves", question))
        return {kind: Measured(**one) for kind, one in answers.items()}

    def _best(self, tried: Sequence[Array], queries: str, output: str = "simple") -> dict[str, float]:
        """The LDS of those scores [Q, N] among several that have the highest."""
        masks, losses = self.benchmark.masks, self.benchmark.losses(queries, output)
        found = evaluate_lds(max(tried, key=lambda one: mean_lds(one, masks, losses)), masks, losses)
        return {"mean": found.mean, "std": found.bootstrap_std}

    def gap(self, make: Callable[[], tuple[float, float]]) -> tuple[float, float]:
        """A difference and its error, made unless it is there."""
        gap, error = json.loads(self._once(lambda: json.dumps(make()), "gap"))
        return gap, error

    def mixed(self, objectives: Sequence[str], queries: str, **settings: Any) -> Measured:
        """The LDS of the sum of several objectives' scores, each standardised for each query, with damping auto."""

        def ask() -> str:
            total: Array = sum(  # type: ignore[assignment]
                _standardised(self.scores("d-trak", queries, objective=one, **settings)) for one in objectives
            )
            found = evaluate_lds(total, self.benchmark.masks, self.benchmark.losses(queries))
            return json.dumps({"mean": found.mean, "std": found.bootstrap_std})

        return Measured(**json.loads(self._once(ask, "mixed", list(objectives), queries, sorted(settings.items()))))

    def gain(self, method: str, over: str, queries: str, **settings: Any) -> Measured:
        """How much more LDS a method has than another, with damping auto; the same subsets are drawn for both."""

        def ask() -> str:
            values = np.stack([self.scores(one, queries, **settings) for one in (method, over)])
            of_method, of_other = bootstrap(values, self.benchmark.masks, self.benchmark.losses(queries))
            means = [mean_lds(one, self.benchmark.masks, self.benchmark.losses(queries)) for one in values]
            return json.dumps({"mean": means[0] - means[1], "std": float((of_method - of_other).std())})

        return Measured(**json.loads(self._once(ask, "gain", method, over, queries, sorted(settings.items()))))

    def scores(self, method: str, queries: str, **settings: Any) -> Array:
        """[Q, N], with damping auto."""
        opened = self.opened(method, self.benchmark.train, self.benchmark.queries(queries), self.settings(settings))
        (values,), _, _ = score(opened, METHODS[method], [Damping.parse("auto")])
        return values

    def opened(
        self, method: str, train: Images, queries: Images, settings: Settings, folder: Path | None = None
    ) -> Opened:
        """A question about the study's model."""
        images = ImageSource(train), ImageSource(queries)
        question = Question(ModelSource(self.model), *images, (METHODS[method],), settings)
        return checked(Opened(question, folder or self.cache(None), device=self.device))

    def seconds(self, method: str, **settings: Any) -> float:
        """Of one core that the features of all images take: what some more images cost, for all of them.

        The shortest of several times counts, as whatever else the machine does only adds to it; methods that score from
        the same features share it.
        """
        settings = {"encoder": self.encoder, **_given(settings)}
        some = min(max(FEWEST, TIMED // int(settings.get("timesteps", 10))), len(self.benchmark.train) // 2)

        def ask() -> str:
            less, more = (
                min(self._timed(method, count, settings) for _ in range(REPEATS)) for count in (some, 2 * some)
            )
            images = len(self.benchmark.train) + len(self.benchmark.queries("validation"))
            return json.dumps(max(0.0, more - less) / some * images)

        question = ("seconds", some, METHODS[method].needs, sorted(settings.items()))
        return float(json.loads(self._once(ask, *question)))

    def _timed(self, method: str, images: int, settings: dict[str, Any]) -> float:
        """Seconds to make the features of so many training images, without the kernel."""
        train, queries = self.benchmark.train.first(images), self.benchmark.queries("validation").first(FEWEST)
        wanted = replace(self.settings(settings), damping="spectrum")
        clock = time.process_time if self.device == "cpu" else time.perf_counter
        with TemporaryDirectory() as folder:
            opened = self.opened(method, train, queries, wanted, Path(folder))
            _ = opened.facts  # the hashes of weights and images are no part of the features
            started = clock()
            opened.cost(METHODS[method])
            return clock() - started

    def cache(self, model: Path | None, **settings: Any) -> Path:
        """The folder of all features: each store in it is named by what it depends on."""
        return self.folder / "features"

    def settings(self, given: dict[str, Any]) -> Settings:
        """Those among some keywords that say how scores are made, with the study's k unless they give another."""
        names = {one.name for one in fields(Settings)} - {*ASKED}
        usual = {} if self.dim is None else {"projection_dim": self.dim}
        return Settings(**usual | {name: value for name, value in _given(given).items() if name in names})

    def _once(self, ask: Callable[[], str], *question: object) -> str:
        """The answer to a question about this benchmark, with as many retrained models as it now has."""
        own = () if self.dim is None else (f"k = {self.dim}",)
        name = f"{stable_hash(repr((self.benchmark.fingerprint, question, *own))):016x}"
        path = self.folder / "measured" / f"{name}.json"
        if not path.exists():
            write_text(path, ask())
        return path.read_text()


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _standardised(scores: Array) -> Array:
    return np.asarray((scores - scores.mean(1, keepdims=True)) / scores.std(1, keepdims=True))
