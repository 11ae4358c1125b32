"""Choices of our own beside the paper's: noise, projection, mixtures, parameters and damping, with what they cost."""

from collections.abc import Iterator
from typing import Any

from findings import KERNELS, Tables
from study import LDS, Study

from dtrak.evaluation.tables import Cell, Entry, Table

MIXTURES = (
    ["square"],
    ["simple"],
    ["avg"],
    ["simple", "square"],
    ["square", "avg"],
    ["simple", "square", "avg"],
    ["simple", "elbo", "square", "avg", "l1", "l2", "linf"],
)
PARAMETERS = {
    "all": None,
    "up blocks": "up_blocks",
    "up blocks, conv_out": "up_blocks|conv_out",
    "conv_out": "conv_out",
}


def noise(study: Study) -> Tables:
    """The same noise for every image at a timestep, or noise of its own for each."""
    for kind in study.query_kinds:
        rows: list[list[Entry]] = []
        for k in (2, 5, 10, 100):
            found = [study.measure(KERNELS, queries=kind, timesteps=k, noise=way) for way in ("shared", "per-image")]
            rows.append([k, *(one[method].cell for method in KERNELS.split(",") for one in found)])
        heads = [f"{method}, {way}" for method in KERNELS.split(",") for way in ("shared", "own")]
        yield Table(["K", *heads], rows, f"Shared noise, or each image its own, {kind} queries")


def projections(study: Study) -> Tables:
    """A sketch is as good as a dense matrix, for a fraction of the time."""
    rows: list[list[Entry]] = []
    for name in ("sketch", "dense"):
        for k in (512, 4096):
            found = study.measure(KERNELS, timesteps=10, projection=name, projection_dim=k)
            rows.append([f"{name}, k = {k:,}", *(found[method].cell for method in KERNELS.split(","))])
    yield Table(["projection", *KERNELS.split(",")], rows, "Projections, validation queries, K = 10")


def mixtures(study: Study) -> Tables:
    """Standardised scores of several objectives from one forward pass, added."""
    study.fill(MIXTURES[-1], timesteps=10)
    rows: list[list[Entry]] = [
        [" + ".join(names), *(study.mixed(names, kind, timesteps=10).cell for kind in study.query_kinds)]
        for names in MIXTURES
    ]
    yield Table(["objectives", *study.query_kinds], rows, "Mixtures of objectives, K = 10, damping auto")


def parameters(study: Study) -> Tables:
    """Fewer parameters, shorter backward passes."""
    rows: list[list[Entry]] = []
    for name, pattern in PARAMETERS.items():
        found = [study.measure(KERNELS, queries=kind, timesteps=10, parameters=pattern) for kind in study.query_kinds]
        cost = found[0]["d-trak"].seconds
        rows.append([name, *(one[m].cell for one in found for m in KERNELS.split(",")), Cell(cost, f"{cost:.0f}")])
    heads = [f"{method}, {kind}" for kind in study.query_kinds for method in KERNELS.split(",")]
    yield Table(["parameters", *heads, "seconds"], rows, "Parameters, K = 10")


def dampings(study: Study) -> Tables:
    """Rules that look at no retrained model, beside the best in hindsight."""
    ways = ("best", "auto", "spectrum", "0.1")
    rows: list[list[Entry]] = []
    for k in (10, 100):
        found = {way: study.measure(KERNELS, timesteps=k, damping=way) for way in ways}
        rows += [[f"{method}, K = {k}", *(found[way][method].cell for way in ways)] for method in KERNELS.split(",")]
    yield Table(["", *ways], rows, "Ways to set the damping, validation queries")


def costs(study: Study, kind: str = "validation") -> Iterator[tuple[str, LDS]]:
    """Every choice with its LDS and the seconds that it takes, for the figure and its frontier."""
    for k in (2, 5, 10, 100):
        for way in ("shared", "per-image"):
            for name, one in study.measure(f"{KERNELS},mixed-trak", queries=kind, timesteps=k, noise=way).items():
                yield f"{name}, K = {k}{', own noise' * (way != 'shared')}", one
    for name, pattern in PARAMETERS.items():
        if pattern is not None:
            choice: dict[str, Any] = {"timesteps": 10, "parameters": pattern}
            for method, one in study.measure(KERNELS, queries=kind, **choice).items():
                yield f"{method}, {name}", one
    for method, one in study.measure("raw-pixel-cosine,clip-cosine", queries=kind).items():
        yield method, one


OWN = {
    "noise": noise,
    "projections": projections,
    "mixtures": mixtures,
    "parameters": parameters,
    "dampings": dampings,
}
