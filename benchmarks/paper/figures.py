"""Figures of a study: LDS against η, against λ and against cost; where pictures come from; what counterfactuals are."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from cost_figure import cost_figure
from findings import KERNELS, NOISES, interpolated
from matplotlib.figure import Figure
from own import costs
from study import Study

from dtrak import attribute
from dtrak.report.curves import Curve, Sample
from dtrak.report.figures import lds_curve, proponents_and_opponents, save_figure, self_influence

SHOWN = 4  # pictures


def draw(study: Study, folder: Path) -> None:
    """Write NAME-WHAT.png for each figure."""
    for what, figure in _figures(study):
        save_figure(figure, folder / f"{study.name}-{what}.png")
    if study.run is not None:
        for path in sorted((study.run / "counterfactual").glob("*.png")):
            shutil.copy(path, folder / f"{study.name}-counterfactual-{path.name}")


def _figures(study: Study) -> Iterator[tuple[str, Figure]]:
    yield "interpolation", _interpolation(study)
    yield "damping", _dampings(study)
    yield "cost", cost_figure(dict(costs(study)))
    yield from _pictures(study)


def _interpolation(study: Study) -> Figure:
    lines = {}
    for kind in study.query_kinds:
        for noise in NOISES:
            found = interpolated(study, kind, noise)
            lines[f"{kind}, {noise}"] = [Sample(eta, one.mean, one.std) for eta, one in found.items()]
    return lds_curve(Curve("η", "η: TRAK at ½, D-TRAK at 1", lines, "", False, None))


def _dampings(study: Study) -> Figure:
    lines = {
        f"{method}, K = {k}": [Sample(x, lds, chosen=x == one.damping) for x, lds in sorted(one.curve)]
        for k in (10, 100)
        for method, one in study.measure(KERNELS, timesteps=k).items()
    }
    return lds_curve(Curve("λ", "λ ÷ mean eigenvalue", lines, "", True, None))


def _pictures(study: Study) -> Iterator[tuple[str, Figure]]:
    """Of generated pictures, or of held-out images where there are none."""
    queries = study.benchmark.queries(study.query_kinds[-1])
    scores = attribute(
        str(study.benchmark.folder / "model"),
        study.benchmark.train,
        queries,
        KERNELS.split(","),
        cache=study.features(None, timesteps=10),
        timesteps=10,
    )
    yield "proponents", proponents_and_opponents(scores, study.benchmark.train, queries.select(range(SHOWN)))
    yield "self-influence", self_influence(scores["d-trak"], study.benchmark.train)
