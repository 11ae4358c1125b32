"""The commands `dtrak index` and `dtrak search`: the question of attribution for millions of images."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dtrak.checks import MOST
from dtrak.cli import options
from dtrak.cli.options import some_path, whole_number
from dtrak.cli.scoring import Scoring, with_scoring
from dtrak.errors import UsageError
from dtrak.tables import tell

if TYPE_CHECKING:
    from dtrak.methods import Method

RunToIndex = Annotated[
    Path | None, typer.Argument(metavar="RUN", help="The folder of a run; or give --cache instead.", show_default=False)
]
IndexOut = Annotated[Path, typer.Option("--out", metavar="INDEX", parser=some_path, help="The folder of the index.")]
IndexFolder = Annotated[Path, typer.Argument(metavar="INDEX", help="The folder of an index.")]
Asked = Annotated[str, typer.Option("--queries", metavar="IMAGES", help="The pictures to explain.")]
Found = Annotated[
    int,
    typer.Option(metavar="N", parser=whole_number(1, MOST["top"]), help="How many training images for each picture."),
]
TopFile = Annotated[
    Path,
    typer.Option("--out", metavar="FILE", parser=some_path, help="Where to write them: a .csv or an .npz file."),
]
Add = Annotated[str | None, typer.Option(metavar="IMAGES", help="Add these images to an index that exists.")]
Remove = Annotated[
    str | None,
    typer.Option(metavar="IDS", help="Remove images from an index that exists: ids in an .npy or .txt file."),
]


@with_scoring
def index(
    scoring: Scoring,
    run_folder: RunToIndex = None,
    out: IndexOut = Path("index"),
    method: options.Method = None,
    damping: options.Damping = None,
    add: Add = None,
    remove: Remove = None,
    device: options.Device = None,
) -> None:
    """Make an index of training images, with one vector for each.

    Give a run, or the folder of features that `dtrak attribute --cache` filled. `dtrak search` then finds the strongest
    images without reading all features. --add and --remove change an index that exists, with the kernels it has.
    """
    if add is not None or remove is not None:
        _change(out, add, remove)
    elif run_folder is None and scoring.cache is None:
        raise UsageError("give a run, or --cache with a folder of features")
    else:
        _make(scoring.asking_for(method, damping), run_folder, out, options.chosen_device(device))
    tell("The index", out)


def _make(scoring: Scoring, run_folder: Path | None, out: Path, device: str) -> None:
    from dtrak.attribution.index_building import build_index, check_free
    from dtrak.attribution.opened import Opened
    from dtrak.attribution.question import kept_question
    from dtrak.runs.run import Run
    from dtrak.runs.run_questions import opened_run, question_of, settings_of

    check_free(out)
    if run_folder is not None:
        run = Run.open(run_folder)
        run.check_trained()
        settings = scoring.settings(settings_of(run))
        question = question_of(run, None, _one(scoring.chosen(settings, run.usual_method)), settings)
        opened = opened_run(run, question, cache=scoring.cache, device=device, engine=scoring.engine)
    else:
        assert scoring.cache is not None
        asked = kept_question(scoring.cache, scoring.methods)
        settings = scoring.settings(asked.settings)
        methods = _one(scoring.chosen(settings, ",".join(one.name for one in asked.methods)))
        question = replace(asked, queries=None, methods=methods, settings=settings)
        opened = Opened(question, scoring.cache, device=device, engine=scoring.engine)
    build_index(opened, out)


def _one(methods: "tuple[Method, ...]") -> "tuple[Method, ...]":
    if len(methods) != 1:
        raise UsageError(f"an index has the scores of one method, not of {', '.join(one.name for one in methods)}")
    return methods


def _change(out: Path, add: str | None, remove: str | None) -> None:
    from dtrak.attribution.index import Index
    from dtrak.attribution.index_building import add_images, remove_images
    from dtrak.images.images import ImageSource, read_ids

    found = Index.open(out)
    if remove is not None:
        found = remove_images(found, read_ids(remove).tolist())
    if add is not None:
        add_images(found, ImageSource(add))


def search(folder: IndexFolder, queries: Asked, out: TopFile, top: Found = 20) -> None:
    """Find the training images that made a picture, in an index.

    A short list is found by compressed vectors, and its images are scored again exactly.
    """
    from dtrak.attribution.index import Index
    from dtrak.attribution.scores import save_scores
    from dtrak.files import check_not_read, check_writable

    opened = Index.open(folder)
    check_not_read(out, queries)
    check_writable(out)
    found = opened.search(queries, top)
    save_scores(out, {found.method: found})
    tell("The strongest images", out)
