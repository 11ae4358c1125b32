"""What the paper reports, each as a table of a benchmark: constructions, interpolation, methods, retraining, ablations.

A finding is a function from a study to tables; `FINDINGS` names them in the order of the paper.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from study import LDS, Study

from dtrak.evaluation.tables import Entry, Table
from dtrak.objectives import OBJECTIVES

Tables = Iterator[Table]
FREE = (
    "random,raw-pixel-dot,raw-pixel-cosine,clip-dot,clip-cosine,gradient-dot,gradient-cosine,tracin,gas,"
    "relative-if,renormalized-if,trak,d-trak,mixed-trak"
)
ETAS = [eta / 10 for eta in range(11)]
NOISES = {"shared": "shared noise", "per-image": "own noise"}
KERNELS = "trak,d-trak"


def constructions(study: Study) -> Tables:
    """The paper's first table: which function's gradient describes an image best."""
    for kind in study.query_kinds:
        rows: list[list[Entry]] = []
        found: dict[int, dict[str, LDS]] = {}
        for k in (10, 100):
            study.fill(list(OBJECTIVES), timesteps=k)
            found[k] = {name: _of_objective(study, name, kind, timesteps=k) for name in OBJECTIVES}
        for name in OBJECTIVES:
            rows.append([name, *(found[k][name].cell for k in (10, 100))])
        yield Table(["objective", "K = 10", "K = 100"], rows, f"Constructions of φ, {kind} queries")


def many_timesteps(study: Study) -> Tables:
    """The same with all timesteps, for the two that matter most; hours."""
    study.fill(["simple", "square"], timesteps=1000)
    rows: list[list[Entry]] = [
        [name, *(_of_objective(study, name, kind, timesteps=1000).cell for kind in study.query_kinds)]
        for name in ("simple", "square")
    ]
    yield Table(["objective", *study.query_kinds], rows, "Constructions of φ, K = 1000")


def interpolation(study: Study) -> Tables:
    """From the noise's part of L_Simple to L_Square: η = ½ is TRAK, η = 1 D-TRAK; with shared noise, and without."""
    columns = [(kind, noise) for kind in study.query_kinds for noise in NOISES]
    found = {column: interpolated(study, *column) for column in columns}
    rows: list[list[Entry]] = [[eta, *(found[column][eta].cell for column in columns)] for eta in ETAS]
    yield Table(["η", *(f"{kind}, {NOISES[noise]}" for kind, noise in columns)], rows, "Interpolation, K = 10")


def interpolated(study: Study, kind: str, noise: str) -> dict[float, LDS]:
    """By η."""
    names = {eta: f"interpolated({eta:g})" for eta in ETAS}
    study.fill(list(names.values()), timesteps=10, noise=noise)
    return {eta: _of_objective(study, name, kind, timesteps=10, noise=noise) for eta, name in names.items()}


def methods(study: Study) -> Tables:
    """Every method that retrains nothing."""
    extra = _checkpoints(study)
    names = ",".join(name for name in FREE.split(",") if extra or name not in ("tracin", "gas"))
    columns = [(kind, k) for kind in study.query_kinds for k in (10, 100)]
    found = {(kind, k): study.measure(names, queries=kind, timesteps=k, **extra) for kind, k in columns}
    rows: list[list[Entry]] = [[name, *(found[column][name].cell for column in columns)] for name in names.split(",")]
    yield Table(["method", *(f"{kind}, K = {k}" for kind, k in columns)], rows, "Methods that retrain nothing")


def retraining(study: Study) -> Tables:
    """Ensembles of S models, and what is learnt from the losses of half of the subsets, reported on the others."""
    for kind in study.query_kinds:
        rows: list[list[Entry]] = []
        if study.benchmark.retrained:
            for size in (1, 2, 4, 8):
                found = study.measure(
                    "trak-ensemble,d-trak-ensemble", queries=kind, timesteps=10, ensemble_size=size, damping="auto"
                )
                rows += [[f"{name}, S = {size}", one.cell] for name, one in found.items()]
        half = len(study.benchmark.masks) // 2
        learnt = study.measure("empirical-influence,datamodel,datamodel-lasso", queries=kind)
        rows += [[f"{name}, S = {half}", one.cell] for name, one in learnt.items()]
        alone = study.measure(f"{KERNELS},empirical-influence", queries=kind, timesteps=10, damping="auto")
        rows += [[f"{name}, the model alone", alone[name].cell] for name in KERNELS.split(",")]
        yield Table(["method", "LDS %"], rows, f"Methods that retrain, {kind} queries, on the other {half} subsets")


def outputs(study: Study) -> Tables:
    """Whether a construction of φ predicts one output F of retrained models better than others."""
    if not (study.benchmark.folder / "outputs").exists():
        return
    study.fill(list(OBJECTIVES), timesteps=10)
    kind = "validation"
    rows: list[list[Entry]] = [
        [f"F = {output}", *(_of_objective(study, name, kind, timesteps=10, output=output).cell for name in OBJECTIVES)]
        for output in OBJECTIVES
    ]
    yield Table(["output", *(f"φ = {name}" for name in OBJECTIVES)], rows, f"Output and construction, {kind} queries")


def ablations(study: Study) -> Tables:
    """Dimensions, noises against timesteps, uniform against cumulative ones, checkpoints."""
    yield _ablation(study, "k", {str(k): {"projection_dim": k} for k in (128, 512, 2048, 4096, 8192)})
    ways = {"100 × 1": (100, 1), "50 × 2": (50, 2), "20 × 5": (20, 5), "10 × 10": (10, 10)}
    yield _ablation(study, "timesteps × noises", {name: {"timesteps": k, "draws": z} for name, (k, z) in ways.items()})
    kinds = {"uniform": "", "cumulative": "cumulative:"}
    both = {f"{name}, K = {k}": {"timesteps": f"{prefix}{k}"} for name, prefix in kinds.items() for k in (10, 100)}
    yield _ablation(study, "timesteps", both)
    if study.run is not None:
        found = sorted((study.run / "checkpoints").iterdir())
        yield _ablation(study, "checkpoint", {path.name: {"model": path} for path in found})


def counterfactuals(study: Study) -> Tables:
    """What `dtrak evaluate counterfactual RUN` has found, for finished pictures and on the way to them."""
    folder = None if study.run is None else study.run / "counterfactual"
    for path in sorted(folder.rglob("counterfactual.json")) if folder else []:
        content = json.loads(path.read_text())
        step, pictures, removed = content["step"], len(content["queries"]), content["removed"]
        where = "the finished picture" if step is None else f"step {step}"
        rows: list[list[Entry]] = [
            [name, *(_quartiles(one[distance]) for distance in ("l2", "cosine"))]
            for name, one in content["methods"].items()
        ]
        caption = f"Counterfactuals: {where}, {pictures} pictures, {removed} images removed; median (quartiles)"
        yield Table(["method", "ℓ2", "cosine"], rows, caption)


def _quartiles(summary: dict[str, Any]) -> str:
    low, high = summary["quartiles"]
    return f"{summary['median']:.3g} ({low:.3g} to {high:.3g})"


def _ablation(study: Study, what: str, choices: dict[str, dict[str, Any]]) -> Table:
    rows: list[list[Entry]] = []
    for name, settings in choices.items():
        found = [study.measure(KERNELS, queries=kind, **{"timesteps": 10, **settings}) for kind in study.query_kinds]
        rows.append([name, *(one[method].cell for one in found for method in KERNELS.split(","))])
    heads = [f"{method}, {kind}" for kind in study.query_kinds for method in KERNELS.split(",")]
    return Table([what, *heads], rows, f"LDS against {what}")


def _of_objective(study: Study, name: str, kind: str, **settings: Any) -> LDS:
    return study.measure("d-trak", objective=name, queries=kind, **settings)["d-trak"]


def _checkpoints(study: Study) -> dict[str, Any]:
    return {} if study.run is None else {"checkpoints": study.run / "checkpoints"}


FINDINGS: dict[str, Callable[[Study], Tables]] = {
    "constructions": constructions,
    "many-timesteps": many_timesteps,
    "interpolation": interpolation,
    "methods": methods,
    "retraining": retraining,
    "outputs": outputs,
    "ablations": ablations,
    "counterfactuals": counterfactuals,
}
