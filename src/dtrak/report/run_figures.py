"""The figures of a run for papers, each by its name: for `dtrak figure`."""

from collections.abc import Callable

from dtrak.attribution.scores import Scores
from dtrak.errors import UsageError, check_known
from dtrak.figures import PaperFigure, lds_bars, lds_curve
from dtrak.report.credit import CREDIT_COLUMNS
from dtrak.report.curves import damping_curve, setting_curves
from dtrak.report.measured import Measurement, read_measurements
from dtrak.runs.run import Run

KINDS = ("proponents", "credit", "self-influence", "lds", "curve")


def run_figure(run: Run, kind: str, method: str | None, queries: str, top: int, by: str | None) -> PaperFigure:
    """Draw one figure of a run; `queries` is how many pictures, or the ids of some, with commas."""
    check_known("kind of figure", kind, list(KINDS))
    if kind in ("lds", "curve"):
        measured = _measured(run)
        return (
            lds_bars(measured[0].methods, measured[0].ceiling, measured[0].perfect)
            if kind == "lds"
            else _curve(run, measured)
        )
    scores = run.scores(method or _first_method(run))
    draw: dict[str, Callable[[], PaperFigure]] = {
        "proponents": lambda: scores.plot(int(queries) if queries.isdecimal() else queries.split(","), top),
        "credit": lambda: scores.plot_credit(by or credit_column(scores)),
        "self-influence": scores.plot_self_influence,
    }
    return draw[kind]()


def credit_column(scores: Scores) -> str:
    """Return the column by which credit is usually given."""
    for column in CREDIT_COLUMNS:
        if column in scores.columns:
            return column
    known = ", ".join(scores.columns) or "none"
    raise UsageError(f"the training images have no column artist or label: give --by COLUMN; there is {known}")


def _first_method(run: Run) -> str | None:
    asked = run.asked
    return None if asked is None else next(iter(asked["facts"]["methods"]))


def _measured(run: Run) -> list[Measurement]:
    found = read_measurements(run)
    if not found:
        raise UsageError(f"{run.folder} has no LDS yet: `dtrak evaluate lds {run.folder}` measures it")
    return found


def _curve(run: Run, measured: list[Measurement]) -> PaperFigure:
    over_damping = damping_curve(measured)
    curves = [*setting_curves(measured), *([over_damping] if over_damping else [])]
    if not curves:
        raise UsageError(
            f"{run.folder} has no curve yet: it needs two comparisons that differ in one setting, such as "
            f"`dtrak evaluate lds {run.folder} --timesteps 2` after one with another K"
        )
    return lds_curve(curves[0])
