"""The commands that show what a run has: `dtrak credit`, `report`, `serve`, `figure`, `card` and `info`."""

import os
from pathlib import Path
from typing import Annotated

import torch
from cyclopts import Parameter

from dtrak.attribution.credit import credit_tables, parse_groups
from dtrak.attribution.index import FILE, Index
from dtrak.attribution.scores import Scores
from dtrak.cli.shared_options import (
    HERE,
    NOTHING,
    Cache,
    Device,
    Highest,
    Methods,
    Place,
    RunFolder,
    Typed,
    Workers,
    fastest,
    option,
    whole,
)
from dtrak.devices import devices
from dtrak.errors import UsageError
from dtrak.explorer.exploration import explore
from dtrak.explorer.index_pages import IndexPages
from dtrak.explorer.run_pages import RunPages
from dtrak.explorer.server import listen
from dtrak.explorer.server import serve as serve_pages
from dtrak.files import check_writable
from dtrak.report import write_report
from dtrak.report.card import card_of_run
from dtrak.report.overview import described
from dtrak.report.run_figures import run_figure
from dtrak.runs.run import SCORES, Run, versions
from dtrak.tables import Table, check_table_path, show, tell, write_table

OneMethod = Annotated[str | None, option("NAME", "One of the methods of the scores.", "the first, or the only one")]
Port = Annotated[
    int | None,
    option("N", "The port to listen on; 0 takes any free one.", "8321, or the next free one", whole(0, 2**16 - 1)),
]
NoBrowser = Annotated[bool, Parameter(help="Print the address, but do not open a browser.")]


def credit(
    scores: Annotated[Path, Parameter("SCORES", help="A file of scores (.npz), or the folder of a run.")],
    /,
    *,
    by: Annotated[
        str,
        option(
            "COLUMN",
            "The column of the training images whose values share the credit: artist; or some of its values: "
            "artist=Monet,Hokusai.",
        ),
    ] = "artist",
    method: OneMethod = None,
    highest: Highest = None,
    top: Annotated[int | None, option("N", "How many groups, the largest.", "all", whole(1, "count"))] = None,
    out: Annotated[
        Place | None, option("FILE", "Write the credit for all pictures and for each here: .csv, .md, .tex or .txt.")
    ] = None,
) -> None:
    """Give artists their share of the credit.

    The command adds up the positive scores of each group of training images, and prints each group's share with its
    95 % interval.
    """
    column, only = parse_groups(by)
    if out is not None:
        check_table_path(out)
        check_writable(out)
    file = scores
    if scores.is_dir():
        file = Run.open(scores).folder / SCORES
        if not file.exists():
            raise UsageError(f"{scores} has no scores yet: `dtrak attribute {scores}` makes them")
    together, with_each = credit_tables(Scores.load(file, method).only_highest(highest), column, only, top)
    show(together)
    if out is not None:
        write_table(with_each, out)
        tell("The credit", out)


def report(run_folder: RunFolder, /) -> None:
    """Write a page that shows the scores of a run.

    The page is RUN/report.html, which needs no other file. It shows the run's pictures beside their highest-scoring
    training images.
    """
    tell("The report", write_report(Run.open(run_folder)))


def serve(
    folder: Annotated[Path, Parameter("RUN", help="The folder of a run, or of an index.")],
    /,
    *,
    method: Methods = None,
    host: Annotated[
        str, option("ADDRESS", "The address to listen on; with 0.0.0.0, other machines can connect.")
    ] = "127.0.0.1",
    port: Port = None,
    no_browser: NoBrowser = False,
    typed: Typed = NOTHING,
    cache: Cache = None,
    workers: Workers = HERE,
    device: Device = None,
) -> None:
    """Explore the scores of a run, or ask an index, in a browser.

    The page shows the scores of each picture and of each training image, for any damping. You can also upload a
    picture, or have one drawn from a seed, and see its scores; such pictures are kept in RUN/asked. Missing features
    are computed in the background. An index finds the strongest training images of pictures that you upload. Methods
    and settings that are not given are those of the last attribution, else the recipe's.
    """
    if (folder / FILE).is_file():
        if typed or method or cache or workers != HERE:
            raise UsageError(f"{folder} is an index, whose settings are fixed: leave out the options of scoring")
        index, listening = Index.open(folder), listen(host, port)
        serve_pages(IndexPages(index, fastest(device)), host, listening, not no_browser)
        return
    run, listening = Run.open(folder), listen(host, port)
    engine, device = workers.chosen(), fastest(device)
    explored = explore(run, device, methods=method, typed=typed, cache=cache, engine=engine)
    serve_pages(RunPages(explored), host, listening, not no_browser)


def figure(
    run_folder: RunFolder,
    /,
    *,
    out: Annotated[Place, option("FILE", "Where to write the figure: .pdf, .svg or .png.")],
    kind: Annotated[str, option("KIND", "proponents, credit, self-influence, lds or curve.")] = "proponents",
    method: OneMethod = None,
    queries: Annotated[str, option("N", "How many pictures, the first ones; or the ids of some: a.png,b.png.")] = "4",
    top: Annotated[int, option("N", "How many training images a picture has.", "5", whole(1, 20))] = 5,
    by: Annotated[str | None, option("COLUMN", "For credit: the column of the groups.", "artist or label")] = None,
) -> None:
    """Draw a figure for a paper: vector graphics, or a PNG.

    KIND is proponents (pictures with the training images that made them), credit (shares of groups, with intervals),
    self-influence, lds (how well each method predicts retraining), or curve (LDS against a setting).
    """
    opened = Run.open(run_folder)
    check_writable(out)
    run_figure(opened, kind, method, queries, top, by).save(out)
    tell("The figure", out)


def card(
    run_folder: RunFolder,
    picture: Annotated[str, Parameter("PICTURE", help="The id of a picture, such as seed-00000.png.")],
    /,
    *,
    out: Annotated[
        Place | None, option("FILE", "Where to write the card: .png, .pdf or .svg.", "PICTURE-card.png")
    ] = None,
    method: OneMethod = None,
) -> None:
    """Write one picture's attribution card, to hand to somebody.

    The card has the picture, its strongest training images, the credit of each group, the method, how far to trust it,
    and the date, on one page.
    """
    opened = Run.open(run_folder)
    path = out or Path(f"{Path(picture).stem}-card.png")
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise UsageError(f"cannot write a card to {path}: its ending has to be .png, .pdf or .svg")
    check_writable(path)
    card_of_run(opened, picture, method).save(path)
    tell("The card", path)


def info(
    run_folder: Annotated[
        Path | None, Parameter("RUN", help="The folder of a run; without it, this machine is described.")
    ] = None,
    /,
) -> None:
    """Describe a run, or this machine for a bug report.

    For a run: what it holds, what was measured, and which command would be next. Without one: the versions of packages,
    devices and cores.
    """
    if run_folder is not None:
        show(Table(["run", str(run_folder)], list(described(Run.open(run_folder)).items())))
        return
    machine = {"devices": ", ".join(devices()), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    show(Table(["what", "this machine"], [(name, str(value)) for name, value in {**versions(), **machine}.items()]))
