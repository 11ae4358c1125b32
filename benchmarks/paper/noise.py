"""Who shares noise with whom: all images, none, or those at the same place of their batches as in the authors' code."""

from functools import partial

import numpy as np
import torch
from drawings import Drawing, curve
from findings import KERNELS, Finding
from study import MISSING, Array, Measured, Study

from dtrak.data import Images
from dtrak.evaluation.tables import Cell, Entry, Table
from dtrak.gradients import Copies, Features
from dtrak.projections import make_projection
from dtrak.timesteps import select_timesteps

ETAS = [eta / 10 for eta in range(11)]
WAYS = {"shared": "shared noise", "per-image": "own noise"}
SEEDS = range(5)
BATCH = 16  # of the authors' program, unless it is told otherwise
OBJECTIVE = {"trak": "simple", "d-trak": "square"}


def interpolation(study: Study) -> Finding:
    """From the noise's part of L_Simple to L_Square: η = ½ is TRAK, η = 1 D-TRAK; with shared noise, and without."""
    for k in (10, 100):
        columns = [(kind, way) for kind in study.query_kinds for way in WAYS]
        found = {(kind, way): interpolated(study, kind, way, k) for kind, way in columns}
        rows: list[list[Entry]] = [[eta, *(found[column][eta].cell for column in columns)] for eta in ETAS]
        yield Table(["η", *(f"{kind}, {WAYS[way]}" for kind, way in columns)], rows, f"Interpolation, K = {k}")
        lines = {f"{kind}, {WAYS[way].removesuffix(' noise')}": found[kind, way] for kind, way in columns}
        yield Drawing(f"interpolation-{k}", curve("η: TRAK at ½, D-TRAK at 1", lines))


def interpolated(study: Study, kind: str, way: str, timesteps: int) -> dict[float, Measured]:
    """By η. Gradients, their mean and their projection are linear, so two objectives' features give all."""

    def make(eta: float) -> tuple[Array, Array]:
        found = study.features(["simple", "square"], timesteps=timesteps, noise=way)
        train, queries = (
            eta * of["square"] + (1 - eta) * (of["simple"] - of["square"]) for of in (found["train"], found[kind])
        )
        return train, queries

    return {eta: study.of_kernel(partial(make, eta), "interpolated", eta, timesteps, way, queries=kind) for eta in ETAS}


def noise(study: Study) -> Finding:
    """The same noise for every image at a timestep, noise of its own for each, or noise by the place in a batch."""
    for kind in study.query_kinds:
        rows: list[list[Entry]] = []
        for k in (2, 5, 10, 100):
            found = [study.measure(KERNELS, queries=kind, timesteps=k, noise=way) for way in WAYS]
            batches = [by_batch(study, method, kind, k).cell if k in (10, 100) else MISSING for method in KERNELS]
            cells = [(*(one[method].cell for one in found), batches[i]) for i, method in enumerate(KERNELS)]
            rows.append([k, *(cell for of_method in cells for cell in of_method)])
        heads = [
            f"{method}, {way}" for method in KERNELS for way in ("shared", "own", f"by place in a batch of {BATCH}")
        ]
        yield Table(["K", *heads], rows, f"Who shares noise, {kind} queries")


def by_batch(study: Study, method: str, kind: str, timesteps: int) -> Measured:
    """Images at the same place of their batches share their noise."""

    def make() -> tuple[Array, Array]:
        train, queries = (
            _batch_features(study, images, OBJECTIVE[method], timesteps)
            for images in (study.benchmark.train, study.benchmark.queries(kind))
        )
        return train, queries

    return study.of_kernel(make, "by batch", BATCH, method, timesteps, queries=kind)


def _batch_features(study: Study, images: Images, objective: str, timesteps: int) -> Array:
    """[B, k], with a noise for each place in a batch, the same for all sets of images."""
    path = study.folder / "by-batch" / f"{images.fingerprint}-{objective}-{timesteps}.npy"
    if not path.exists():
        parameters = study.model.parameters(None)
        sizes = {name: value.numel() for name, value in parameters.items()}
        copies = Copies(select_timesteps(timesteps, study.model.timesteps), noise="per-image")
        features = Features(study.model, [objective], copies, make_projection("sketch", 4096, sizes, 0), parameters)
        batches = [range(start, min(start + BATCH, len(images))) for start in range(0, len(images), BATCH)]
        rows = [features(images.tensor(batch), range(len(batch)))[0] for batch in batches]
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, torch.cat(rows).numpy())
    return np.asarray(np.load(path))


def draws(study: Study) -> Finding:
    """How much one draw of the noise matters: LDS over several, and how alike an image's features are in two."""
    kind = "validation"
    rows: list[list[Entry]] = []
    for k in (2, 5, 10):
        cells: list[Entry] = []
        for method in KERNELS:
            for way in WAYS:
                found = [
                    study.measure((method,), queries=kind, timesteps=k, noise=way, seed=seed, projection_seed=0)[method]
                    for seed in SEEDS
                ]
                means = [one.mean for one in found]
                cells.append(Cell(float(np.mean(means)), f"{np.mean(means):.1f} ± {np.std(means, ddof=1):.1f}"))
        rows.append([k, *cells])
    heads = [f"{method}, {way}" for method in KERNELS for way in WAYS.values()]
    yield Table(["K", *heads], rows, f"Mean and deviation over {len(SEEDS)} draws of the noise, {kind} queries")
    names = ("simple", "square", "interpolated(0)", "avg")
    alike: list[list[Entry]] = [
        [name, *(Cell(one, f"{one:.2f}") for one in (likeness(study, name, k) for k in (2, 10)))] for name in names
    ]
    yield Table(["objective", "K = 2", "K = 10"], alike, "Cosine of an image's features in two draws of the noise")


def likeness(study: Study, objective: str, timesteps: int) -> float:
    """The mean over training images of cos(φ, φ'), where each is what sets the image apart from the others."""
    first, second = (
        study.features([objective], timesteps=timesteps, seed=seed, projection_seed=0)["train"][objective]
        for seed in (0, 1)
    )
    first, second = (one - one.mean(0) for one in (first, second))
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return float(np.mean((first * second).sum(1) / lengths))
