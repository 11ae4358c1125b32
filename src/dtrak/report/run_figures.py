"""The figures of a run for papers: each by its name for `dtrak figure`, and those of counterfactuals."""

from pathlib import Path

from dtrak.errors import UsageError, check_known
from dtrak.evaluation.counterfactual import Counterfactual
from dtrak.features.trajectories import SEED
from dtrak.figures import PaperFigure, lds_bars, lds_curve
from dtrak.figures.charts import boxplots
from dtrak.figures.picture_sheets import side_by_side
from dtrak.report.curves import damping_curve, setting_curves
from dtrak.report.measured import read_measurements
from dtrak.report.sections import CREDIT_COLUMNS
from dtrak.runs.run import Run

KINDS = ("proponents", "credit", "self-influence", "lds", "curve")


def run_figure(run: Run, kind: str, method: str | None, queries: str, top: int, by: str | None) -> PaperFigure:
    """Draw one figure of a run; `queries` is how many pictures, or the ids of some, with commas."""
    check_known("kind of figure", kind, list(KINDS))
    if kind in ("lds", "curve"):
        measured = read_measurements(run)
        if not measured:
            raise UsageError(f"{run.folder} has no LDS yet: `dtrak evaluate lds {run.folder}` measures it")
        if kind == "lds":
            return lds_bars(measured[0].methods, measured[0].ceiling, measured[0].perfect)
        over_damping = damping_curve(measured)
        curves = [*setting_curves(measured), *([over_damping] if over_damping else [])]
        if not curves:
            raise UsageError(
                f"{run.folder} has no curve yet: it needs two comparisons that differ in one setting, such as "
                f"`dtrak evaluate lds {run.folder} --timesteps 2` after one with another K"
            )
        return lds_curve(curves[0])
    asked = run.asked
    scores = run.scores(method or (None if asked is None else next(iter(asked["facts"]["methods"]))))
    if kind == "proponents":
        return scores.plot(int(queries) if queries.isdecimal() else queries.split(","), top)
    if kind == "self-influence":
        return scores.plot_self_influence()
    column = by or next((one for one in CREDIT_COLUMNS if one in scores.columns), None)
    if column is None:
        known = ", ".join(scores.columns) or "none"
        raise UsageError(f"the training images have no column artist or label: give --by COLUMN; there is {known}")
    return scores.plot_credit(column)


def save_counterfactual_figures(result: Counterfactual, folder: Path) -> None:
    """Write boxplots.png, with the distances to the originals, and pictures.png into the folder of a result."""
    panels = {
        "ℓ2 distance to the original": {one.method: one.l2 for one in result.effects},
        f"cosine of {Path(result.settings['encoder']).name}": {one.method: one.cosine for one in result.effects},
    }
    boxplots(panels).save(folder / "boxplots.png")
    pictures = {"original": result.originals, **{one.method: one.pictures for one in result.effects}}
    captions = [f"seed {seed}" for seed in result.queries.columns[SEED]]
    side_by_side(pictures, captions).save(folder / "pictures.png")
