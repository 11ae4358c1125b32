"""Who shares noise with whom: all images, none, or those at the same place of their batches as in the authors' code."""

from functools import partial

import numpy as np
from drawings import Drawing, curve
from findings import KERNELS, Finding
from study import MISSING, Array, Measured, Study

from dtrak.tables import Cell, Entry, Table

ETAS = [eta / 10 for eta in range(11)]
ETA = {"trak": 0.5, "d-trak": 1.0}
WAYS = {"shared": "shared noise", "per-image": "own noise"}
BY_PLACE = "by place"
BATCH, SHARD = 52, 1000  # images of a batch and of a shard, in the authors' scripts for CIFAR
SEEDS = range(5)
OBJECTIVES = ("simple", "square")


def interpolation(study: Study) -> Finding:
    """From the noise's part of L_Simple to L_Square: η = ½ is TRAK, η = 1 D-TRAK; for each way to share noise."""
    ways = {**WAYS, BY_PLACE: "noise by place"}
    for k in (10, 100):
        columns = [(kind, way) for kind in study.query_kinds for way in ways]
        found = {(kind, way): interpolated(study, kind, way, k) for kind, way in columns}
        rows: list[list[Entry]] = [[eta, *(found[column][eta].cell for column in columns)] for eta in ETAS]
        yield Table(["η", *(f"{kind}, {ways[way]}" for kind, way in columns)], rows, f"Interpolation, K = {k}")
        for kind in study.query_kinds:
            lines = {name: found[kind, way] for way, name in ways.items()}
            yield Drawing(f"interpolation-{kind}-{k}", curve("η: TRAK at ½, D-TRAK at 1", lines))
    yield _lengths(study)


def _lengths(study: Study) -> Table:
    """How long the gradients of the loss and of its parts are: these cancel where a model predicts the noise."""
    found = study.features(OBJECTIVES, timesteps=100)["train"]
    loss, square = found["simple"], found["square"]
    rows: list[list[Entry]] = []
    for name, one in {"‖ε − ε_θ‖²": loss, "‖ε_θ‖²": square, "‖ε‖² − 2 ε·ε_θ": loss - square}.items():
        length = float(np.linalg.norm(one, axis=1).mean())
        rows.append([name, Cell(length, f"{length:.2f}")])
    return Table(["gradient of", "mean length"], rows, "The loss and its parts, training images, K = 100")


def interpolated(study: Study, kind: str, way: str, timesteps: int) -> dict[float, Measured]:
    """By η. Gradients, their mean and their projection are linear, so two objectives' features give all."""

    def make(eta: float) -> tuple[Array, Array]:
        if way == BY_PLACE:
            found = by_place(study, timesteps)
        else:
            found = study.features(OBJECTIVES, timesteps=timesteps, noise=way)
        train, queries = (
            eta * of["square"] + (1 - eta) * (of["simple"] - of["square"]) for of in (found["train"], found[kind])
        )
        return train, queries

    return {eta: study.of_kernel(partial(make, eta), "interpolated", eta, timesteps, way, queries=kind) for eta in ETAS}


def by_place(study: Study, timesteps: int) -> dict[str, dict[str, Array]]:
    """Features as `study.features` gives them, where images at the same place of their batches share their noise.

    The authors set the seed of the noise anew for each batch. Here, each place has a seed of its own.
    """
    found = {}
    for name, images in study.sets.items():
        places = np.arange(len(images)) % SHARD % BATCH
        rows = [np.flatnonzero(places == place) for place in range(max(places) + 1)]
        parts = [
            study.features_of(images.select(own), OBJECTIVES, timesteps=timesteps, seed=place, projection_seed=0)
            for place, own in enumerate(rows)
        ]
        order = np.argsort(np.concatenate(rows))
        found[name] = {one: np.concatenate([part[one] for part in parts])[order] for one in OBJECTIVES}
    return found


def noise(study: Study) -> Finding:
    """The same noise for every image at a timestep, noise of its own for each, or noise by the place in a batch."""
    for kind in study.query_kinds:
        rows: list[list[Entry]] = []
        for k in (2, 5, 10, 100):
            cells: list[Entry] = [k]
            found = [study.measure(KERNELS, queries=kind, timesteps=k, noise=way) for way in WAYS]
            placed = interpolated(study, kind, BY_PLACE, k) if k in (10, 100) else {}
            for method, eta in ETA.items():
                cells += [one[method].cell for one in found] + [placed[eta].cell if placed else MISSING]
            rows.append(cells)
        heads = [f"{method}, {way}" for method in ETA for way in ("shared", "own", "by place")]
        yield Table(["K", *heads], rows, f"Who shares noise, {kind} queries")


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
