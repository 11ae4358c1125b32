"""The arguments and options of the commands that show what there is."""

from pathlib import Path
from typing import Annotated

import typer

from dtrak.cli.options import some_path, whole_number

RunToDescribe = Annotated[
    Path | None, typer.Argument(metavar="RUN", help="The folder of a run; without it, this machine is described.")
]
FigureKind = Annotated[
    str, typer.Option("--kind", metavar="KIND", help="proponents, credit, self-influence, lds or curve.")
]
FigureFile = Annotated[
    Path,
    typer.Option("--out", metavar="FILE", parser=some_path, help="Where to write the figure: .pdf, .svg or .png."),
]
OneMethod = Annotated[
    str | None,
    typer.Option("--method", metavar="NAME", help="A method of the run's scores.", show_default="the first"),
]
WhichPictures = Annotated[
    str,
    typer.Option("--queries", metavar="N", help="How many pictures, the first ones; or the ids of some: a.png,b.png."),
]
TopImages = Annotated[
    int, typer.Option("--top", metavar="N", parser=whole_number(1, 20), help="How many training images a picture has.")
]
Column = Annotated[
    str | None,
    typer.Option(
        "--by", metavar="COLUMN", help="For credit: the column of the groups.", show_default="artist or label"
    ),
]
Picture = Annotated[str, typer.Argument(metavar="PICTURE", help="The id of a picture, such as seed-00000.png.")]
CardFile = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        parser=some_path,
        help="Where to write the card: .png, .pdf or .svg.",
        show_default="PICTURE-card.png",
    ),
]
