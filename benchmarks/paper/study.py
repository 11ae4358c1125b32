"""A benchmark under study: what was measured of it is kept, so that a killed night goes on where it stopped."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dtrak.attribution import gather
from dtrak.benchmark import Benchmark
from dtrak.damping import Damping
from dtrak.evaluation.comparison import compare
from dtrak.evaluation.lds import evaluate_lds
from dtrak.evaluation.tables import Cell
from dtrak.featurizing import feature_settings, featurize
from dtrak.files import write_json, write_text
from dtrak.methods import split_methods
from dtrak.models import load_model
from dtrak.noise import stable_hash

ENCODER = "efficientnet-lite0"  # comes with the installation


@dataclass(frozen=True)
class LDS:
    """Of one method, in percent."""

    mean: float
    std: float  # of a bootstrap over subsets
    damping: float | None = None
    seconds: float = 0.0  # to score, features included
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

    @property
    def query_kinds(self) -> list[str]:
        return [kind for kind in ("validation", "generated") if (self.benchmark.folder / f"{kind}.npz").exists()]

    def measure(self, methods: str, model: Path | None = None, **settings: Any) -> dict[str, LDS]:
        """The LDS of each method, by `compare`; the paper takes the best damping in hindsight, and so does this."""
        settings = {"damping": "best", "encoder": ENCODER, **settings}
        path = self._kept(methods, str(model), sorted(settings.items()))
        if not path.exists():
            cache = self.features(model, **settings)
            found = compare(self.benchmark, split_methods(methods), cache, model=model, device="cpu", **settings)
            write_text(path, found.json())
        content = json.loads(path.read_text())["methods"]
        return {
            name: LDS(one["lds"], one["bootstrap_std"], one["damping"], one["seconds"], tuple(map(tuple, one["curve"])))
            for name, one in content.items()
        }

    def fill(self, objectives: Sequence[str], **settings: Any) -> None:
        """Make the features of several objectives with one forward pass for all of them."""
        folder, model = self.features(None, **settings), load_model(str(self.benchmark.folder / "model"))
        wanted = feature_settings(settings)
        featurize(model, self.benchmark.train, objectives, wanted, folder, "train")
        for kind in self.query_kinds:
            queries = self.benchmark.queries(kind)
            featurize(model, queries, objectives, wanted, folder, f"queries-{queries.fingerprint[:8]}")

    def mixed(self, objectives: Sequence[str], queries: str, **settings: Any) -> LDS:
        """The LDS of the mean of several objectives' scores, each standardised for each query, with damping auto."""
        path = self._kept("mixed", list(objectives), queries, sorted(settings.items()))
        if not path.exists():
            total = sum(self._standardised(objective, queries, **settings) for objective in objectives)
            found = evaluate_lds(np.asarray(total), self.benchmark.masks, self.benchmark.losses(queries))
            write_json(path, {"mean": found.mean, "std": found.bootstrap_std})
        return LDS(**json.loads(path.read_text()))

    def _standardised(self, objective: str, queries: str, **settings: Any) -> np.ndarray:
        """[Q, N]."""
        evidence = gather(
            load_model(str(self.benchmark.folder / "model")),
            self.benchmark.train,
            self.benchmark.queries(queries),
            ["d-trak"],
            self.features(None, **settings),
            objective=objective,
            with_partners=True,
            **settings,
        )
        values = evidence.scores(evidence.methods[0], Damping.parse("auto"))
        return (values - values.mean(1, keepdims=True)) / values.std(1, keepdims=True)

    def _kept(self, *question: object) -> Path:
        """Where the answer to a question about this benchmark lies, with as many retrained models as it now has."""
        return self.folder / "measured" / f"{stable_hash(repr((self._retrained, question))):016x}.json"

    @cached_property
    def _retrained(self) -> str:
        return hashlib.sha256(self.benchmark.losses("validation").tobytes()).hexdigest()

    def features(self, model: Path | None, **settings: Any) -> Path:
        """A folder for every way to make features."""
        values = asdict(feature_settings(settings))
        return self.folder / "features" / f"{stable_hash(repr((sorted(values.items()), str(model)))):016x}"
