"""What the paper reports, each as tables of a benchmark: constructions, methods, retraining, outputs, ablations,
counterfactuals, pictures. A finding is a function from a study to tables and drawings."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from drawings import Drawing
from study import MISSING, Measured, Study

from dtrak import attribute
from dtrak.attribution.benchmark_folder import Benchmark
from dtrak.evaluation.lds import ceiling, mean_losses, spearman
from dtrak.figures import proponents_and_opponents
from dtrak.gradients.objectives import OBJECTIVES
from dtrak.tables import Cell, Entry, Table

Finding = Iterator[Table | Drawing]
KERNELS = ("trak", "d-trak")
OF_CHECKPOINTS = ("tracin", "gas")
JOURNEY = "journey-trak"
FREE = (
    *("random", "raw-pixel-dot", "raw-pixel-cosine", "clip-dot", "clip-cosine", "gradient-dot", "gradient-cosine"),
    *OF_CHECKPOINTS,
    *("relative-if", "renormalized-if", "trak", "d-trak", "mixed-trak"),
)
SHOWN, TOP = 4, 5  # pictures, and images for each
SAID = {10: "", 100: ", K = 100"}  # what the captions of tables say of their timesteps


def constructions(study: Study) -> Finding:
    """The paper's first table: which function's gradient describes an image best."""
    yield _of_objectives(study, list(OBJECTIVES), (10, 100))


def many_timesteps(study: Study) -> Finding:
    """The same with all timesteps, for the two that matter most; hours."""
    yield _of_objectives(study, ["simple", "square"], (1000,))


def methods(study: Study) -> Finding:
    """Every method that retrains nothing; journey-trak needs generated pictures."""
    names = [name for name in FREE if study.checkpoints or name not in OF_CHECKPOINTS]
    asked = {kind: [*names, *([JOURNEY] if kind == "generated" else [])] for kind in study.query_kinds}
    columns = [(kind, k) for kind in study.query_kinds for k in (10, 100)]
    found = [study.measure(asked[kind], queries=kind, timesteps=k, **study.checkpoints) for kind, k in columns]
    rows: list[list[Entry]] = [
        [name, *(one[name].cell if name in one else MISSING for one in found)] for name in asked[study.query_kinds[-1]]
    ]
    yield Table(["method", *(f"{kind}, K = {k}" for kind, k in columns)], rows, "Methods that retrain nothing")


def retraining(study: Study) -> Finding:
    """Ensembles of S models, and what is learnt from the losses of half of the subsets, reported on the others."""
    half = len(study.benchmark.masks) // 2
    ensembles = ("trak-ensemble", "d-trak-ensemble")
    learnt = ("empirical-influence", "datamodel", "datamodel-lasso")
    kinds, rows = study.query_kinds, list[list[Entry]]()

    def add(names: tuple[str, ...], label: str, **settings: Any) -> None:
        # With a method that learns among them, all are reported on the other half.
        asked = (*names, *(learnt[:1] if not {*names} & {*learnt, *ensembles} else ()))
        found = [study.measure(asked, queries=kind, damping="auto", **settings) for kind in kinds]
        rows.extend([f"{name}, {label}", *(one[name].cell for one in found)] for name in names)

    for size in (1, 2, 4, 8) if study.benchmark.retrained else ():
        add(ensembles, f"S = {size}", timesteps=10, ensemble_size=size)
    add(learnt, f"{half} subsets")
    add((*KERNELS, "mixed-trak"), "the model alone", timesteps=10)
    notes = [f"Measured on the {half} subsets that nothing was fitted on; S is a number of models."]
    yield Table(["method", *kinds], rows, "Methods that retrain", notes)


def other_models(study: Study) -> Finding:
    """Methods that learn from S models of their own (`dtrak evaluate retrain RUN`), reported on the whole benchmark."""
    if (others := study.others) is None:
        return
    for kind in study.query_kinds:
        rows, columns = list[list[Entry]](), (10, 100)
        ensembles = ["trak-ensemble", "d-trak-ensemble", *(["journey-trak-ensemble"] if kind == "generated" else [])]
        for name in ensembles if others.retrained else ():
            for size in (1, 2, 4, 8):
                settings = {**study.drawn, "queries": kind, "retrained": others.folder, "ensemble_size": size}
                found = [study.measure((name,), timesteps=k, **settings)[name].cell for k in columns]
                rows.append([f"{name}, S = {size}", *found])
        for name in ("empirical-influence", "datamodel", "datamodel-lasso"):
            for size in (one for one in (64, 128, 256, 512) if one <= len(others.masks)):
                settings = {"queries": kind, "retrained": others.folder, "retrained_count": size}
                cell = study.measure((name,), **settings)[name].cell
                rows.append([f"{name}, S = {size}", cell, cell])
        yield Table(
            ["method", *(f"K = {k}" for k in columns)], rows, f"Methods with models of their own, {kind} queries"
        )


def outputs(study: Study) -> Finding:
    """Whether a construction of φ predicts one output F of retrained models better than others."""
    if not (study.benchmark.folder / "outputs").exists():
        return
    for k, said in SAID.items():
        study.features(list(OBJECTIVES), timesteps=k)
        for kind in study.query_kinds:
            rows: list[list[Entry]] = []
            for output in OBJECTIVES:
                found = [_of_objective(study, name, kind, timesteps=k, output=output).cell for name in OBJECTIVES]
                rows.append([f"F = {output}", *_of_losses(study.benchmark, kind, output), *found])
            heads = ["output", "ceiling", "ρ with the loss", *(f"φ = {name}" for name in OBJECTIVES)]
            yield Table(heads, rows, f"Output and construction{said}, {kind} queries")
    for kind in study.query_kinds:
        yield _mean_prediction(study, kind)


def _of_losses(benchmark: Benchmark, kind: str, output: str) -> tuple[Cell, Cell]:
    """How well seeds agree on an output, in percent, and how far it goes with the loss, ρ over subsets."""
    losses, outputs = (mean_losses(benchmark.losses(kind, name)) for name in ("simple", output))
    top, alike = ceiling(benchmark.losses(kind, output)), float(spearman(outputs, losses).mean())
    return MISSING if top is None else Cell(top, f"{top:.1f}"), Cell(alike, f"{alike:.2f}")


def _mean_prediction(study: Study, kind: str) -> Table:
    """Training lowers the loss of an image, whatever that does to its mean prediction: so the training side of a kernel
    that predicts F = avg should be the loss's gradient, and only the query's that of F."""
    rows: list[list[Entry]] = []
    for trained, asked in (("avg", "avg"), ("simple", "avg"), ("simple", "simple")):

        def make(trained: str = trained, asked: str = asked) -> Any:
            found = study.features([trained, asked], timesteps=10)
            return found["train"][trained], found[kind][asked]

        cells = [
            study.of_kernel(make, trained, asked, 10, queries=kind, output=output).cell for output in ("avg", "simple")
        ]
        rows.append([f"Φ of {trained}, φ(x) of {asked}", *cells])
    return Table(["features", "F = avg", "F = simple"], rows, f"The mean prediction as output, {kind} queries")


def ablations(study: Study) -> Finding:
    """Dimensions, noises against timesteps, uniform against cumulative ones, checkpoints."""
    for k in SAID:
        dimensions = {f"{dim:,}": {"projection_dim": dim} for dim in (128, 512, 2048, 4096, 8192)}
        yield ablation(study, "k", dimensions, k=k)
    ways = {"100 × 1": (100, 1), "50 × 2": (50, 2), "20 × 5": (20, 5), "10 × 10": (10, 10)}
    yield ablation(study, "timesteps × noises", {name: {"timesteps": k, "draws": z} for name, (k, z) in ways.items()})
    spread = {f"uniform, K = {k}": k for k in (10, 100)} | {
        f"cumulative, K = {k}": f"cumulative:{k}" for k in (10, 100)
    }
    yield ablation(study, "timesteps", {name: {"timesteps": one} for name, one in spread.items()})
    if study.run is not None:
        found = sorted(path for path in (study.run / "checkpoints").iterdir() if path.is_dir())
        yield from (ablation(study, "checkpoint", {path.name: {"model": path} for path in found}, k=k) for k in SAID)


def counterfactuals(study: Study) -> Finding:
    """What `dtrak evaluate counterfactual RUN` has found, for finished pictures and on the way to them."""
    folder = None if study.run is None else study.run / "counterfactual"
    for path in sorted(folder.rglob("counterfactual.json")) if folder else []:
        content = json.loads(path.read_text())
        step, pictures, removed = content["step"], len(content["queries"]), content["removed"]
        where = "the finished picture" if step is None else f"timestep {step}"
        rows: list[list[Entry]] = [
            [name, *(_quartiles(one[distance]) for distance in ("l2", "cosine"))]
            for name, one in content["methods"].items()
        ]
        heads = [f"without {removed} images by", f"ℓ2 of {pictures} pictures: median (quartiles)", "cosine"]
        yield Table(heads, rows, f"Counterfactuals: {where}")
        yield from (_paired(content["methods"], distance, where) for distance in ("l2", "cosine"))
        for drawing in sorted(path.parent.glob("*.png")):
            at = "" if step is None else f"step-{step}-"
            yield Drawing(f"counterfactual-{at}{drawing.stem}", drawing)


def _paired(methods: Mapping[str, Any], distance: str, where: str) -> Table:
    """The row's distance less the column's: mean over the same pictures with its standard error, and how often above 0.

    Methods stand in the order of what they change, so that a row's method is compared with those before it.
    """
    values = {name: np.array(one[distance]["per_query"]) for name, one in methods.items()}
    order = sorted(values, key=lambda name: values[name].mean(), reverse=distance == "cosine")
    rows: list[list[Entry]] = []
    for place, name in enumerate(order[1:], 1):
        differences = [values[name] - values[other] for other in order[:place]]
        cells = [
            Cell(float(one.mean()), f"{one.mean():+.3g} ± {one.std(ddof=1) / len(one) ** 0.5:.2g} ({(one > 0).sum()})")
            for one in differences
        ]
        rows.append([name, *cells, *[MISSING] * (len(order) - 1 - place)])
    label = {"l2": "ℓ2", "cosine": "cosine"}[distance]
    return Table([f"{label} less that of", *order[:-1]], rows, f"Paired differences of {label}: {where}")


def pictures(study: Study) -> Finding:
    """Where generated pictures come from, or held-out images where there are none; how often from their own class."""
    train, queries = study.benchmark.train, study.benchmark.queries(study.query_kinds[-1])
    settings, cache = study.settings({"timesteps": 10}), study.cache(None, timesteps=10)
    given = {one.name: getattr(settings, one.name) for one in fields(settings)}
    scores = attribute(study.model, train, queries, list(KERNELS), cache=cache, **given)
    yield Drawing("proponents", proponents_and_opponents(scores, train, queries.select(range(SHOWN))))
    yield Drawing("self-influence", scores["d-trak"].plot_self_influence(each=5, least=3))
    labels, asked = (one.columns["label"] for one in (train, study.benchmark.queries("validation")))
    rows: list[list[Entry]] = []
    for method in ("raw-pixel-cosine", *KERNELS, "mixed-trak"):
        order = np.argsort(study.scores(method, "validation", timesteps=10), axis=1)
        same = [100 * np.mean(labels[ids] == asked[:, None]) for ids in (order[:, : -TOP - 1 : -1], order[:, :TOP])]
        rows.append([method, *(Cell(float(one), f"{one:.0f} %") for one in same)])
    heads = ["method", f"of {TOP} proponents", f"of {TOP} opponents"]
    yield Table(heads, rows, "Images of the query's own class, validation queries")


def ablation(
    study: Study, what: str, choices: Mapping[str, Mapping[str, Any]], names: tuple[str, ...] = KERNELS, k: int = 10
) -> Table:
    """Some methods with different settings, with K timesteps unless the settings say otherwise."""
    rows: list[list[Entry]] = []
    for choice, settings in choices.items():
        found = [study.measure(names, queries=kind, **{"timesteps": k, **settings}) for kind in study.query_kinds]
        rows.append([choice, *(one[method].cell for one in found for method in names)])
    heads = [f"{method}, {kind}" for kind in study.query_kinds for method in names]
    return Table([what, *heads], rows, f"LDS against {what}{SAID[k]}")


def _of_objectives(study: Study, objectives: list[str], timesteps: tuple[int, ...]) -> Table:
    for k in timesteps:
        study.features(objectives, timesteps=k)
    columns = [(kind, k) for kind in study.query_kinds for k in timesteps]
    rows: list[list[Entry]] = [
        [name, *(_of_objective(study, name, kind, timesteps=k).cell for kind, k in columns)] for name in objectives
    ]
    return Table(["objective", *(f"{kind}, K = {k}" for kind, k in columns)], rows, "Constructions of φ")


def _of_objective(study: Study, name: str, kind: str, **settings: Any) -> Measured:
    return study.measure(("d-trak",), objective=name, queries=kind, **settings)["d-trak"]


def _quartiles(summary: dict[str, Any]) -> str:
    low, high = summary["quartiles"]
    return f"{summary['median']:.3g} ({low:.3g} to {high:.3g})"
