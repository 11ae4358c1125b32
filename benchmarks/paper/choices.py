"""Choices of our own beside the paper's: projection, mixtures, parameters and damping, with what they cost."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from drawings import Choice, Drawing, cost_figure, damping_curve, frontier
from findings import KERNELS, OF_CHECKPOINTS, Finding, ablation
from study import MISSING, Measured, Study

from dtrak.tables import Cell, Entry, Table

MIXTURES = (
    ["square"],
    ["simple"],
    ["avg"],
    ["simple", "square"],
    ["interpolated(0)"],
    ["interpolated(0)", "square"],
    ["square", "avg"],
    ["simple", "square", "avg"],
    ["simple", "elbo", "square", "avg", "l1", "l2", "linf"],
)
PARAMETERS = {"up blocks": "up_blocks", "up blocks, conv_out": "up_blocks|conv_out", "conv_out": "conv_out"}
DENSE = {"batch_size": 32}  # a dense matrix is made anew for every pass: the more images share one, the better
RECOMMENDED = (*KERNELS, "mixed-trak", "step-trak")
HEADLINE = ("raw-pixel-cosine", "gradient-cosine", *RECOMMENDED)
DEFAULT = "step-trak, K = 10"
DAMPINGS = ("best", "auto", "spectrum", "0.1")
FEATURES: dict[str, dict[str, Any]] = {
    "K = 10": {"timesteps": 10},
    "K = 100": {"timesteps": 100},
    **{f"K = 10, {name}": {"timesteps": 10, "parameters": pattern} for name, pattern in PARAMETERS.items()},
    "K = 10, own noise": {"timesteps": 10, "noise": "per-image"},
}


def projections(study: Study) -> Finding:
    """Whether a sketch is as good as the paper's dense matrix, and either as none."""
    ways: dict[str, dict[str, Any]] = {"none": {"projection": "identity"}}
    for name, dimensions, more in (("sketch", (512, 4096, 32768), {}), ("dense", (512, 4096), DENSE)):
        ways |= {f"{name}, k = {k:,}": {"projection": name, "projection_dim": k, **more} for k in dimensions}
    yield ablation(study, "projection", ways)


def mixtures(study: Study) -> Finding:
    """Standardised scores of several objectives from one forward pass, added."""
    study.features([*MIXTURES[-1], "interpolated(0)"], timesteps=10)
    rows: list[list[Entry]] = [
        [" + ".join(names), *(study.mixed(names, kind, timesteps=10).cell for kind in study.query_kinds)]
        for names in MIXTURES
    ]
    yield Table(["objectives", *study.query_kinds], rows, "Mixtures of objectives, K = 10, damping auto")


def recommended(study: Study) -> Finding:
    """What a user gets, with λ by rule; the gain has the error of the same subsets drawn for both."""
    yield _compared(study, HEADLINE, 10)


def recommended_100(study: Study) -> Finding:
    """The same with many timesteps, for the methods that average over them."""
    yield _compared(study, HEADLINE[:-1], 100)


def _compared(study: Study, methods: tuple[str, ...], k: int) -> Table:
    """The LDS of methods, and what the last one gains over the others with a kernel."""
    last = methods[-1]
    found = [study.measure(methods, queries=kind, timesteps=k, damping="auto") for kind in study.query_kinds]
    rows: list[list[Entry]] = [[method, *(one[method].cell for one in found)] for method in methods]
    for method in (one for one in methods[:-1] if one in RECOMMENDED):
        gains = [study.gain(last, method, kind, timesteps=k).cell for kind in study.query_kinds]
        rows.append([f"{last}'s gain over {method}", *gains])
    return Table(["method", *study.query_kinds], rows, f"Recommended, damping auto, K = {k}")


def parameters(study: Study) -> Finding:
    """Fewer parameters, shorter backward passes."""
    ways = {"all": {}} | {name: {"parameters": pattern} for name, pattern in PARAMETERS.items()}
    table = ablation(study, "parameters", ways, RECOMMENDED)
    times = [study.seconds("mixed-trak", timesteps=10, **settings) for settings in ways.values()]
    rows = [[*row, Cell(one, f"{one:.0f}")] for row, one in zip(table.rows, times, strict=True)]
    yield Table([*table.heads, "seconds of mixed-trak"], rows, table.caption)


def dampings(study: Study) -> Finding:
    """Rules that look at no retrained model, beside the best in hindsight."""
    rows, tried = list[list[Entry]](), dict[str, Measured]()
    for k in (10, 100):
        found = {way: study.measure(RECOMMENDED, timesteps=k, damping=way) for way in DAMPINGS}
        rows += [[f"{method}, K = {k}", *(found[way][method].cell for way in DAMPINGS)] for method in RECOMMENDED]
        tried |= {f"{method}, K = {k}": found["best"][method] for method in RECOMMENDED}
    yield Table(["method", *DAMPINGS], rows, "Ways to set the damping, validation queries")
    yield Drawing("damping", damping_curve(tried))
    yield from (_lost(study, kind) for kind in study.query_kinds)


def _lost(study: Study, kind: str) -> Table:
    """What each rule loses against the best λ in hindsight, in points of LDS, for features of many kinds."""
    rows: list[list[Entry]] = []
    for name, settings in FEATURES.items():
        for objective in ("simple", "square", "avg"):
            best, *others = (
                study.measure(("d-trak",), objective=objective, queries=kind, damping=way, **settings)["d-trak"]
                for way in DAMPINGS
            )
            lost = [Cell(one.mean - best.mean, f"{one.mean - best.mean:+.1f}") for one in others]
            rows.append([f"{name}: {objective}", best.cell, *lost])
    means = [float(np.mean([row[column].value for row in rows])) for column in range(2, len(DAMPINGS) + 1)]
    rows.append(["mean", MISSING, *(Cell(one, f"{one:+.1f}") for one in means)])
    return Table(["features", *DAMPINGS], rows, f"What rules lose, {kind} queries")


def costs(study: Study) -> Finding:
    """Every choice with its LDS and what its features cost, timed one after the other."""
    choices = sorted(_choices(study), key=lambda one: one.seconds)
    best = frontier(choices)
    for caption, shown in {"Choices on the frontier": best, "All choices": choices}.items():
        rows: list[list[Entry]] = [[one.name, one.lds.cell, Cell(one.seconds, f"{one.seconds:.1f}")] for one in shown]
        yield Table(["choice", "LDS %", "seconds"], rows, f"{caption}, validation queries")
    yield Drawing("cost", cost_figure(choices, DEFAULT))


def _choices(study: Study) -> Iterator[Choice]:
    def each(methods: tuple[str, ...], name: str, **settings: Any) -> Iterator[Choice]:
        for method, one in study.measure(methods, **settings).items():
            yield Choice(method, name, one, study.seconds(method, **settings), "noise" in settings)

    for k in (2, 5, 10):
        yield from each(RECOMMENDED, f"K = {k}", timesteps=k)
    yield from each(("d-trak",), "K = 100", timesteps=100)
    yield from each(KERNELS, "K = 10, own noise", timesteps=10, noise="per-image")
    for k in (30, 100):
        yield from each(RECOMMENDED[-1:], f"K = {k}", timesteps=k)
    for k, draws in ((2, 5), (5, 2)):
        yield from each(RECOMMENDED[-1:], f"K = {k}, {draws} noises", timesteps=k, draws=draws)
    yield from each(RECOMMENDED[-1:], "all layers", timesteps=10, parameters="all")
    for name, pattern in PARAMETERS.items():
        yield from each(RECOMMENDED, name, timesteps=10, parameters=pattern)
    for objective in ("avg", "interpolated(0)"):
        yield from each(("d-trak",), objective, timesteps=10, objective=objective)
    yield from each(KERNELS, "k = 512", timesteps=10, projection_dim=512)
    yield from each(("gradient-dot", "gradient-cosine", "relative-if", "renormalized-if"), "", timesteps=10)
    yield from each(("raw-pixel-cosine", "clip-cosine"), "")
    if study.checkpoints:
        yield from each(OF_CHECKPOINTS, "", timesteps=10, **study.checkpoints)
