"""The commands `dtrak index` and `dtrak search`: the question of attribution for millions of images."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dtrak.checks import MOST
from dtrak.cli import options
from dtrak.cli.options import some_path, whole_number
from dtrak.cli.scoring import Scoring, with_scoring
from dtrak.errors import UsageError
from dtrak.tables import tell

if TYPE_CHECKING:
    from dtrak.inputs.task import Task

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
    from dtrak.attribution.indexing import build_index, check_free
    from dtrak.kernels.damping import Damping
    from dtrak.methods import METHODS

    check_free(out)
    task, name, model = _of_cache(scoring) if run_folder is None else _of_run(scoring, run_folder, device)
    build_index(task, METHODS.choose(name), Damping.parse(task.settings.damping), out, model)


def _of_run(scoring: Scoring, folder: Path, device: str) -> tuple["Task", str, tuple[str, None, None]]:
    """Return the task of a run; features that are missing will be computed."""
    from dtrak.runs.attributing import prepare_run, settings_of
    from dtrak.runs.run import Run

    run = Run.open(folder)
    settings = scoring.settings(settings_of(run))
    (name,) = _one(scoring.method_names(settings, run.recipe.attribution.method))
    model = run.model().to(device)
    first = run.train_images.first(1)
    task, _ = prepare_run(run, model, first, [name], settings, scoring.cache, scoring.engine)
    return task, name, (str((folder / "model").resolve()), None, None)


def _of_cache(scoring: Scoring) -> tuple["Task", str, tuple[str, str | None, str | None]]:
    """Return the task of a folder of features; nothing is computed."""
    from pydantic import TypeAdapter

    from dtrak.attribution.asked import remembered
    from dtrak.images.images import load_images
    from dtrak.inputs.gradients import GradientSource, with_stores
    from dtrak.inputs.needs import needed_by
    from dtrak.inputs.settings import Settings
    from dtrak.inputs.task import Task
    from dtrak.kernels.damping import Damping
    from dtrak.methods import METHODS, Gradients
    from dtrak.models import load_model

    assert scoring.cache is not None
    asked = remembered(scoring.cache)
    settings = scoring.settings(TypeAdapter(Settings).validate_python(asked.settings))
    (name,) = _one(scoring.method_names(settings, asked.methods[0]))
    method = METHODS.choose(name)
    if not isinstance(method.needs, Gradients):
        raise UsageError(f"an index cannot have scores of {name}: give trak, d-trak, mixed-trak or step-trak")
    needed = needed_by([method], settings.objective, Damping.parse(settings.damping))
    train, model = load_images(asked.train, size=asked.size), load_model(*asked.of_model)
    task = Task(model, train, train.first(1), settings, scoring.cache, needed)
    source = GradientSource(method, method.needs)
    task = with_stores(task, source, scoring.cache)
    rows: Any = next(iter(task.once_for_training(("train", source.kind, 0), dict).values()))
    if len(rows) != len(train):
        raise UsageError(
            f"{asked.train} holds {len(train):,} images now, but the features in {scoring.cache} are of {len(rows):,}"
        )
    return task, name, asked.of_model


def _one(names: list[str]) -> list[str]:
    if len(names) != 1:
        raise UsageError(f"an index has the scores of one method, not of {', '.join(names)}")
    return names


def _change(out: Path, add: str | None, remove: str | None) -> None:
    from dtrak.attribution.index import Index
    from dtrak.attribution.indexing import add_images, remove_images
    from dtrak.images.images import read_ids

    found = Index.open(out)
    if remove is not None:
        found = remove_images(found, read_ids(remove).tolist())
    if add is not None:
        add_images(found, add)


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
