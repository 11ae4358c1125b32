"""The commands for millions of images: `dtrak index`, `search` and `plan`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from dtrak.attribution.index import Index
from dtrak.attribution.index_building import add_images, build_index, check_free, remove_images
from dtrak.attribution.opened import Opened
from dtrak.attribution.question import kept_question
from dtrak.attribution.scores import save_scores
from dtrak.cli.shared_options import (
    HERE,
    NOTHING,
    Cache,
    Device,
    Lora,
    Methods,
    Place,
    Typed,
    Workers,
    asked_for,
    fastest,
    option,
    whole,
)
from dtrak.errors import UsageError
from dtrak.evaluation.cost import forecast, measured_rate
from dtrak.files import check_not_read, check_writable
from dtrak.images.images import ImageSource, read_ids
from dtrak.models import load_model
from dtrak.runs.run import Run
from dtrak.runs.run_questions import opened_run, question_of, settings_of
from dtrak.tables import check_table_path, show, tell, write_table


def index(
    run_folder: Annotated[Path | None, Parameter("RUN", help="The folder of a run; or give --cache instead.")] = None,
    /,
    *,
    out: Annotated[Place, option("INDEX", "The folder of the index.")] = Path("index"),
    method: Methods = None,
    add: Annotated[str | None, option("IMAGES", "Add these images to an index that exists.")] = None,
    remove: Annotated[
        str | None, option("IDS", "Remove images from an index that exists: ids in an .npy or .txt file.")
    ] = None,
    typed: Typed = NOTHING,
    cache: Cache = None,
    workers: Workers = HERE,
    device: Device = None,
) -> None:
    """Make an index of training images, with one vector for each.

    Give a run, or the folder of features that `dtrak attribute --cache` filled. `dtrak search` then finds the strongest
    images without reading all features. --add and --remove change an index that exists, with the kernels it has.
    """
    if add is not None or remove is not None:
        found = Index.open(out)
        if remove is not None:
            found = remove_images(found, read_ids(remove).tolist())
        if add is not None:
            add_images(found, ImageSource(add))
        tell("The index", out)
        return
    check_free(out)
    if run_folder is not None:
        run = Run.open(run_folder)
        run.check_trained()
        settings, methods, _ = asked_for(typed, method, settings_of(run), run.usual_method)
        question = question_of(run, None, methods, settings)
    elif cache is not None:
        asked = kept_question(cache, method)
        usual = ",".join(one.name for one in asked.methods)
        settings, methods, _ = asked_for(typed, method, asked.settings, usual)
        question = replace(asked, queries=None, methods=methods, settings=settings)
    else:
        raise UsageError("give a run, or --cache with a folder of features")
    if len(methods) != 1:
        raise UsageError(f"an index has the scores of one method, not of {', '.join(one.name for one in methods)}")
    engine, device = workers.chosen(), fastest(device)
    if run_folder is not None:
        opened = opened_run(run, question, cache=cache, device=device, engine=engine)
    else:
        assert cache is not None
        opened = Opened(question, cache, device=device, engine=engine)
    build_index(opened, out)
    tell("The index", out)


def search(
    folder: Annotated[Path, Parameter("INDEX", help="The folder of an index.")],
    /,
    *,
    queries: Annotated[str, option("IMAGES", "The pictures to explain.")],
    out: Annotated[Place, option("FILE", "Where to write them: a .csv or an .npz file.")],
    top: Annotated[int, option("N", "How many training images for each picture.", "20", whole(1, "top"))] = 20,
) -> None:
    """Find the training images that made a picture, in an index.

    A short list is found by compressed vectors, and its images are scored again exactly.
    """
    opened = Index.open(folder)
    check_not_read(out, queries)
    check_writable(out)
    found = opened.search(queries, top)
    save_scores(out, {found.method: found})
    tell("The strongest images", out)


def plan(
    *,
    images: Annotated[int, option("N", "How many training images.", None, whole(1, 10**12))],
    model: Annotated[str, option("MODEL", "A diffusers folder or a hub id.")],
    gpus: Annotated[int, option("G", "How many GPUs work at a time.", "1", whole(1, "workers"))] = 1,
    rate: Annotated[
        float | None, option("R", "Passes in a second of one GPU, e.g. measured there.", "measured on this machine")
    ] = None,
    lora: Lora = None,
    parameters: Annotated[str | None, option("PATTERN", "Use only parameters whose name matches.", "all")] = None,
    out: Annotated[Place | None, option("FILE", "Write it here: .csv, .md, .tex or .txt.")] = None,
    device: Device = None,
) -> None:
    """Print what attribution of many images would take.

    For each choice there are passes, hours, disk, memory and the time of a question. The speed of the model is measured
    here with a few random pictures, or given with --rate.
    """
    if rate is not None and not 0 < rate < float("inf"):
        raise UsageError(f"rate {rate}: it must be positive, in passes per second")
    if out is not None:
        check_table_path(out)
    opened, where = load_model(model, lora), fastest(device)
    if rate is None:
        rate = measured_rate(opened.to(where), parameters)
        said = f"{rate:,.1f} passes per second, measured on this machine ({where}) with random pictures"
    else:
        said = f"{rate:,.1f} passes per second, as given"
    table = forecast(images, rate, gpus, f"{said}; × {gpus} at a time.")
    show(table)
    if out is not None:
        write_table(table, out)
        tell("The plan", out)
