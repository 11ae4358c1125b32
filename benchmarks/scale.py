"""Time and memory of fitting, of λ by rule, of one question, and of an index, for many training images.

    python benchmarks/scale.py --real FOLDER                            # all sizes; needs 12 GB of disk
    python benchmarks/scale.py --rows 100000 --dim 1024 --real FOLDER   # one size
    python benchmarks/scale.py --figure FILE                            # draw the results that there are
    python benchmarks/scale.py --served --rows 1000000 --real CACHE     # ask `dtrak serve` instead; see scale_served.py

Features are synthetic, with a real spectrum. FOLDER has features of every copy of real images, in a feature store such
as RUN/features/…/train-simple-…; each row is scaled to length 1. A synthetic row is √½ of a real one, of nine
tenths of them, and √½ of Gaussian noise with their covariance. The second objective has the same rows with a tenth of
noise of its own. Queries are made in the same way from the other tenth of the real rows.

Each step is a process of its own, so that its peak of memory is its own. Seconds are of the CPU, as other programs may
run on the machine; those of a search are of the clock. `scale_peers.py` has what others take for the same rows.
"""

import argparse
import json
import math
import multiprocessing
import os
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scale_figures import draw, show
from scale_peers import MOST, PEERS, hand_over, peer
from scale_served import ask_served, make_served

from dtrak.attribution.formula_inputs import Fitted, inputs_of
from dtrak.attribution.index import Index
from dtrak.attribution.index_building import build_index
from dtrak.attribution.opened import Opened
from dtrak.attribution.question import Question
from dtrak.attribution.settings import Settings
from dtrak.attribution.top_scores import TopScores
from dtrak.features.store import FeatureStore
from dtrak.images.images import Images, ImageSource
from dtrak.kernels.damping import Damping
from dtrak.methods import METHODS
from dtrak.models.model_source import ModelSource

SIZES = ((100_000, 1024), (300_000, 1024), (1_000_000, 1024), (100_000, 4096))
QUERIES, TOP = 40, 20
AUTO = Damping.parse("auto")


class Synthetic:
    """Rows with the spectrum of real ones."""

    def __init__(self, real: Path, dim: int) -> None:
        store = FeatureStore.open(real)
        rows = store.numpy().reshape(-1, store.dim)
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        values, vectors = np.linalg.eigh((rows.T @ rows / len(rows)).astype(np.float64))
        order = np.argsort(-values)[:dim]
        self.rows = (rows @ vectors[:, order]).astype(np.float32)
        spectrum = values[order].clip(min=0)
        if dim > store.dim:  # the spectrum goes on as its last half falls
            half = np.arange(store.dim // 2, store.dim)
            slope, level = np.polyfit(np.log(half + 1), np.log(spectrum[half].clip(min=1e-12)), 1)
            more = np.exp(level + slope * np.log(np.arange(store.dim, dim) + 1))
            spectrum = np.concatenate([spectrum, more])
            self.rows = np.pad(self.rows, ((0, 0), (0, dim - store.dim)))
        self.deviations = np.sqrt(spectrum).astype(np.float32)
        self.real = len(self.rows) * 9 // 10

    def draw(self, count: int, random: np.random.Generator, held_out: bool = False) -> NDArray[np.float32]:
        first, last = (self.real, len(self.rows)) if held_out else (0, self.real)
        noise = random.standard_normal((count, len(self.deviations)), dtype=np.float32) * self.deviations
        return np.float32(math.sqrt(0.5)) * (self.rows[random.integers(first, last, count)] + noise)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", type=Path, help="a store of features of every copy of real images")
    parser.add_argument("--rows", type=int, help="N of one size")
    parser.add_argument("--dim", type=int, default=1024, help="k of one size")
    parser.add_argument("--folder", type=Path, default=Path("scale"), help="where features are made, and removed")
    parser.add_argument("--out", type=Path, default=Path("scale.json"), help="the results, to which more are added")
    parser.add_argument("--figure", type=Path, help="where to draw the results: .png, .svg or .pdf")
    parser.add_argument("--served", action="store_true", help="make an index in --folder, which stays, and serve it")
    arguments = parser.parse_args()
    if arguments.served:
        if not (arguments.folder / "exact.csv").exists():
            make_served(arguments.real, arguments.folder, arguments.rows)
        return ask_served(arguments.folder)
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else []
    if arguments.real is not None:
        for rows, dim in SIZES if arguments.rows is None else [(arguments.rows, arguments.dim)]:
            results = [one for one in results if (one["N"], one["k"]) != (rows, dim)]
            results.append(measured(arguments.real, arguments.folder / f"{rows}-{dim}", rows, dim))
            arguments.out.write_text(json.dumps(results, indent=2))
    show(results)
    if arguments.figure is not None:
        draw(results, arguments.figure)


def measured(real: Path, folder: Path, rows: int, dim: int) -> dict[str, float]:
    """Run all steps for one size, and remove its files."""
    found: dict[str, float] = {"N": rows, "k": dim}

    def run(name: str, step: Callable[..., Any], *more: Any) -> None:
        result, seconds, peak = in_process(step, real, folder, rows, dim, *more)
        found.update({f"{name} s": round(seconds, 2), f"{name} MB": round(peak), **result})
        print(found, flush=True)

    try:
        for step in (make, fit, rule, question, build, search, compare):
            run(step.__name__, step)
        for name in PEERS if rows * dim <= MOST else ():
            try:
                run(name, by_peer, name, found["damping"])
            except ImportError as error:
                print(f"{name} is left out: {error}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def by_peer(real: Path, folder: Path, rows: int, dim: int, name: str, damping: float) -> dict[str, float]:
    """Score all images for one picture with another package."""
    return peer(name, folder, queries(real, dim)[:1], damping)


def make(real: Path, folder: Path, rows: int, dim: int) -> dict[str, float]:
    """Make the features of two objectives."""
    os.fsync = lambda file: None  # they may be lost
    synthetic, random = Synthetic(real, dim), np.random.default_rng(0)
    stores = [
        FeatureStore.create(folder / f"train-{objective}", {"objective": objective}, rows, (dim,))
        for objective in ("square", "simple")
    ]
    for index, part in enumerate(stores[0].shards):
        block = synthetic.draw(len(part), random)
        own = random.standard_normal(block.shape, dtype=np.float32) * synthetic.deviations * np.float32(0.1)
        stores[0].write(index, torch.from_numpy(block))
        stores[1].write(index, torch.from_numpy(block + own))
    if rows * dim <= MOST:
        hand_over(folder)
    return {}


def fit(real: Path, folder: Path, rows: int, dim: int) -> dict[str, float]:
    """Check the store, fit the kernel and keep it."""
    return {"rank": len(training(folder, rows).kernel.eigenvalues)}


def rule(real: Path, folder: Path, rows: int, dim: int) -> dict[str, float]:
    """Find λ by the rule `auto`, which fits the kernel of the other objective, and keep it."""
    return {"damping": training(folder, rows).absolute(AUTO)}


def question(real: Path, folder: Path, rows: int, dim: int) -> dict[str, float]:
    """Score all images for one picture, and hold the strongest."""
    kernel, asked = training(folder, rows), queries(real, dim)[:1, None]
    holder, scores = TopScores(TOP, {}), kernel.kernel.scores(kernel.kernel.coordinates(asked), kernel.absolute(AUTO))
    holder.add(scores)
    np.save(folder / "scores.npy", scores[0])
    return {}


def build(real: Path, folder: Path, rows: int, dim: int) -> dict[str, float]:
    """Make an index."""
    index = build_index(opened(folder, rows), folder / "index")
    size = sum(path.stat().st_size for path in index.folder.rglob("*") if path.is_file())
    return {"index MB": round(size / 1e6), "numbers": index.description.numbers}


def search(real: Path, folder: Path, rows: int, dim: int) -> dict[str, float]:
    """Search in the index."""
    started = time.perf_counter()
    index, asked = Index.open(folder / "index"), queries(real, dim)
    index.prepare()
    opened = time.perf_counter() - started
    index.nearest([asked[:1, None]], TOP)
    taken, found = [], []
    for query in asked:
        started = time.perf_counter()
        found.append(index.nearest([query[None, None]], TOP)[0][0])
        taken.append(time.perf_counter() - started)
    np.save(folder / "found.npy", np.stack(found))
    return {
        "open s": round(opened, 2),
        "search ms": round(1000 * float(np.median(taken)), 1),
        "slowest ms": round(1000 * max(taken), 1),
    }


def compare(real: Path, folder: Path, rows: int, dim: int) -> dict[str, float]:
    """Compare what was found with the strongest by exact scores."""
    kernel, asked = training(folder, rows), queries(real, dim)[:, None]
    scores = kernel.kernel.scores(kernel.kernel.coordinates(asked), kernel.absolute(AUTO))
    best = [np.argpartition(-row, TOP)[:TOP] for row in scores]
    found = np.load(folder / "found.npy")
    recall = [len({*mine.tolist()} & {*theirs.tolist()}) / TOP for mine, theirs in zip(found, best, strict=True)]
    return {"recall": round(float(np.mean(recall)), 4)}


def queries(real: Path, dim: int) -> NDArray[np.float32]:
    return Synthetic(real, dim).draw(QUERIES, np.random.default_rng(1), held_out=True)


def opened(folder: Path, rows: int) -> Opened:
    """Return an open question with these features. Its model and its images are only names."""
    images = Images("synthetic", np.arange(rows), {}, (1, 8, 8), np.empty(0, dtype=np.object_))
    method, settings = METHODS["d-trak"], Settings(damping="auto")
    question = Question(ModelSource("synthetic"), ImageSource(images), None, (method,), settings)
    stores = {one: FeatureStore.open(next(folder.glob(f"train-{one}-*"))) for one in ("square", "simple")}
    described = Opened(question, folder).method_facts(method)
    facts: dict[str, Any] = {
        "model": {"reads": []},
        "members": {"final": [{"weights": "synthetic"}]},
        "train": {"shape": [1, 8, 8], "pixels": folder.name, "ids": "synthetic", "columns": {}},
        "queries": None,
        "settings": settings.facts,
        "objectives": {one: one for one in stores},
        "methods": {method.name: described},
    }
    return Opened(question, folder, facts=facts, train_stores=stores)


def training(folder: Path, rows: int) -> Fitted:
    of_question = opened(folder, rows)
    (one,) = inputs_of(of_question, METHODS["d-trak"])
    assert one.fitted is not None
    return one.fitted


def in_process(step: Callable[..., Any], *arguments: Any) -> tuple[dict[str, float], float, float]:
    """Run a step in a process of its own; return its result, its CPU seconds, and its peak of memory in MB."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result: tuple[dict[str, float], float, float] = pool.apply(_timed, (step, *arguments))
    return result


def _timed(step: Callable[..., Any], *arguments: Any) -> tuple[dict[str, float], float, float]:
    started = time.process_time()
    found = step(*arguments)
    return found, time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
