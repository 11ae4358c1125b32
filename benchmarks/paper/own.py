"""Choices of our own beside the paper's: projection, mixtures, parameters and damping, with what they cost."""

from collections.abc import Iterator
from typing import Any

from drawings import Choice, Drawing, cost_figure, damping_curve, frontier
from findings import KERNELS, OF_CHECKPOINTS, Finding, ablation
from study import Study

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
PARAMETERS = {"up blocks": "up_blocks", "up blocks, conv_out": "up_blocks|conv_out", "conv_out": "conv_out"}
DENSE = {"batch_size": 32}  # a dense matrix is made anew for every pass: the more images share one, the better
RECOMMENDED = (*KERNELS, "mixed-trak")


def projections(study: Study) -> Finding:
    """Whether a sketch is as good as the paper's dense matrix, and either as none."""
    ways: dict[str, dict[str, Any]] = {"none": {"projection": "identity"}}
    for name, dimensions, more in (("sketch", (512, 4096, 32768), {}), ("dense", (512, 4096), DENSE)):
        ways |= {f"{name}, k = {k:,}": {"projection": name, "projection_dim": k, **more} for k in dimensions}
    yield ablation(study, "projection", ways)


def mixtures(study: Study) -> Finding:
    """Standardised scores of several objectives from one forward pass, added."""
    study.features(MIXTURES[-1], timesteps=10)
    rows: list[list[Entry]] = [
        [" + ".join(names), *(study.mixed(names, kind, timesteps=10).cell for kind in study.query_kinds)]
        for names in MIXTURES
    ]
    yield Table(["objectives", *study.query_kinds], rows, "Mixtures of objectives, K = 10, damping auto")


def recommended(study: Study) -> Finding:
    """What a user gets, with λ by rule; the gain has the error of the same subsets drawn for both."""
    for k in (10, 100):
        rows: list[list[Entry]] = []
        for method in RECOMMENDED:
            found = [
                study.measure(RECOMMENDED, queries=kind, timesteps=k, damping="auto") for kind in study.query_kinds
            ]
            rows.append([method, *(one[method].cell for one in found)])
        for method in KERNELS:
            gains = [study.gain("mixed-trak", method, kind, timesteps=k).cell for kind in study.query_kinds]
            rows.append([f"mixed-trak's gain over {method}", *gains])
        yield Table(["method", *study.query_kinds], rows, f"Recommended, damping auto, K = {k}")


def parameters(study: Study) -> Finding:
    """Fewer parameters, shorter backward passes."""
    yield ablation(
        study,
        "parameters",
        {"all": {}} | {name: {"parameters": pattern} for name, pattern in PARAMETERS.items()},
        RECOMMENDED,
    )


def dampings(study: Study) -> Finding:
    """Rules that look at no retrained model, beside the best in hindsight."""
    ways = ("best", "auto", "spectrum", "0.1")
    rows: list[list[Entry]] = []
    for k in (10, 100):
        found = {way: study.measure(KERNELS, timesteps=k, damping=way) for way in ways}
        rows += [[f"{method}, K = {k}", *(found[way][method].cell for way in ways)] for method in KERNELS]
    yield Table(["", *ways], rows, "Ways to set the damping, validation queries")
    tried = {f"{name}, K = {k}": one for k in (10, 100) for name, one in study.measure(KERNELS, timesteps=k).items()}
    yield Drawing("damping", damping_curve(tried))


def costs(study: Study) -> Finding:
    """Every choice with its LDS and what its features cost, timed one after the other."""
    choices = sorted(_choices(study), key=lambda one: one.seconds)
    best = frontier(choices)
    for caption, shown in {"Choices on the frontier": best, "All choices": choices}.items():
        rows: list[list[Entry]] = [[one.name, one.lds.cell, Cell(one.seconds, f"{one.seconds:.1f}")] for one in shown]
        yield Table(["choice", "LDS %", "seconds"], rows, f"{caption}, validation queries")
    yield Drawing("cost", cost_figure(choices))


def _choices(study: Study) -> Iterator[Choice]:
    def each(methods: tuple[str, ...], name: str, **settings: Any) -> Iterator[Choice]:
        for method, one in study.measure(methods, **settings).items():
            yield Choice(method, name, one, study.seconds(method, **settings))

    for k in (2, 5, 10, 100):
        yield from each(RECOMMENDED, f"K = {k}", timesteps=k)
        yield from each(KERNELS, f"K = {k}, own noise", timesteps=k, noise="per-image")
    for name, pattern in PARAMETERS.items():
        yield from each(RECOMMENDED, name, timesteps=10, parameters=pattern)
    yield from each(("gradient-cosine", "relative-if", "renormalized-if"), "", timesteps=10)
    yield from each(("raw-pixel-cosine", "clip-cosine"), "")
    if study.checkpoints:
        yield from each(OF_CHECKPOINTS, "", timesteps=10, **study.checkpoints)
