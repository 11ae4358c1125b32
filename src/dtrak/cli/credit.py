"""The command `dtrak credit`."""

from pathlib import Path
from typing import Annotated

import typer

from dtrak.checks import MOST
from dtrak.cli.options import some_path, whole_number
from dtrak.tables import check_table_path, show, tell, write_table

ScoresOrRun = Annotated[Path, typer.Argument(metavar="SCORES", help="A file of scores (.npz), or the folder of a run.")]
By = Annotated[
    str,
    typer.Option(
        metavar="COLUMN",
        help="The column of the training images whose values share the credit: artist; or some of its values: "
        "artist=Monet,Hokusai.",
    ),
]
OneMethod = Annotated[
    str | None,
    typer.Option("--method", metavar="NAME", help="One of the methods of the file.", show_default="its only one"),
]
Top = Annotated[
    int | None,
    typer.Option(
        metavar="N", parser=whole_number(1, MOST["count"]), help="How many groups, the largest.", show_default="all"
    ),
]
Highest = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=whole_number(1, MOST["count"]),
        help="Count only each picture's N highest scores.",
        show_default="all positive scores",
    ),
]
CreditFile = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        parser=some_path,
        help="Write the credit for all pictures and for each here: .csv, .md, .tex or .txt.",
    ),
]


def credit(
    scores: ScoresOrRun,
    by: By = "artist",
    method: OneMethod = None,
    highest: Highest = None,
    top: Top = None,
    out: CreditFile = None,
) -> None:
    """Give artists their share of the credit.

    The command adds up the positive scores of each group of training images, and prints each group's share with its
    95 % interval.
    """
    from dtrak.attribution.credit import credit_tables, parse_groups
    from dtrak.attribution.scores import Scores
    from dtrak.files import check_writable

    column, only = parse_groups(by)
    if out is not None:
        check_table_path(out)
        check_writable(out)
    together, with_each = credit_tables(Scores.load(_file(scores), method).only_highest(highest), column, only, top)
    show(together)
    if out is not None:
        write_table(with_each, out)
        tell("The credit", out)


def _file(given: Path) -> Path:
    """Return the file of scores: the given one, or that of a run."""
    if not given.is_dir():
        return given
    from dtrak.errors import UsageError
    from dtrak.runs.run import Run

    found = Run.open(given).folder / "scores.npz"
    if not found.exists():
        raise UsageError(f"{given} has no scores yet: `dtrak attribute {given}` makes them")
    return found
