"""The command `dtrak attribute`: of a run, of a model that was trained elsewhere, or one share of the features."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from dtrak.attribution.answer import answer
from dtrak.attribution.attribute import answers, question_about
from dtrak.attribution.opened import Opened, checked, possible
from dtrak.attribution.question import Question
from dtrak.attribution.scores import save_scores
from dtrak.attribution.settings import Options
from dtrak.checks import shortened
from dtrak.cli.shared_options import (
    HERE,
    NOTHING,
    Cache,
    Checkpoint,
    Device,
    Lora,
    Methods,
    Model,
    Place,
    Typed,
    Workers,
    asked_for,
    fastest,
    option,
    whole,
)
from dtrak.errors import UsageError
from dtrak.files import check_not_read, check_writable, kept_until_done
from dtrak.images.images import ImageSource
from dtrak.models.model_source import ModelSource
from dtrak.runs.run import Run
from dtrak.runs.run_questions import attribute_run, opened_run, question_of, run_elsewhere, settings_of
from dtrak.tables import tell

MOST_SHARES = 10**6


def attribute(
    run_folder: Annotated[
        Path | None, Parameter("RUN", help="The folder of a run; or give --model and --train instead.")
    ] = None,
    /,
    *,
    queries: Annotated[str | None, option("IMAGES", "The pictures to explain.", "RUN/generated")] = None,
    method: Methods = None,
    out: Annotated[
        Place | None,
        option(
            "FILE",
            "Where to write the scores: an .npz file, or a .csv file with a line for each pair of images.",
            "RUN/scores.npz",
        ),
    ] = None,
    model: Model = None,
    lora: Lora = None,
    prompt: Annotated[
        str | None,
        option(
            "TEMPLATE",
            "With --model: the prompt of images that have none, such as 'a {label} painting'.",
            "their caption",
        ),
    ] = None,
    train: Annotated[str | None, option("IMAGES", "The images the model was trained on.")] = None,
    size: Annotated[
        int | None,
        option(
            "PIXELS",
            "With --model: crop all images to squares and resize them.",
            "the model's size, if they have another",
            whole(1, "size"),
        ),
    ] = None,
    precision: Annotated[
        str | None,
        option("KIND", "With --model: the precision of a pipeline's frozen weights, bfloat16 or float16.", "float32"),
    ] = None,
    run: Annotated[
        Place | None, option("RUN", "With --model: make a run of the model, which `report`, `serve` and `credit` take.")
    ] = None,
    checkpoint: Checkpoint = None,
    top: Annotated[
        int | None,
        option(
            "N",
            "Keep only the N strongest training images of each picture; a .csv file has N lines for each.",
            "all",
            whole(1, "top"),
        ),
    ] = None,
    shard: Annotated[
        str | None,
        option(
            "I/COUNT", "Only compute this share of the features of training images, such as 3/64, and score nothing."
        ),
    ] = None,
    typed: Typed = NOTHING,
    cache: Cache = None,
    workers: Workers = HERE,
    device: Device = None,
) -> None:
    """Score every training image for every picture.

    Give a run: its recipe decides everything that no option sets, and it keeps the scores for its report. Or give a
    model that was trained elsewhere, with --model, --train, --queries and --out or --run.

    IMAGES are digits:train, digits:validation, a folder, an .npz file, an image, hf:name:split, or parquet:files.
    """
    if run_folder is not None and any(one is not None for one in (model, lora, prompt, train, size, precision, run)):
        raise UsageError(f"give a run ({run_folder}), or --model and --train (and --lora, --prompt, --size), not both")
    loras = () if lora is None else ((lora, 1.0),)
    source = None if model is None else ModelSource(model, loras, prompt, precision)
    images = None if train is None else ImageSource(train, size=size)
    if shard is not None:
        share = parsed_share(shard)
        if workers != HERE:
            said = "is computed in this process: leave out --engine, --workers and --address"
            raise UsageError(f"--shard {shard} {said}")
        if run_folder is not None:
            opened = _share_of_run(run_folder, typed, method, cache, fastest(device))
        elif source is None or images is None or cache is None:
            raise UsageError("--shard fills a folder of features: give a run, or all of --model, --train and --cache")
        else:
            opened = _share_of_model(source, images, typed, method, cache, fastest(device))
        opened.fill_share(share)
        tell(f"Share {share[0]} of {share[1]} of the features", opened.folder)
    elif run_folder is not None:
        _attribute_run(run_folder, queries, method, out, checkpoint, top, typed, cache, workers, fastest(device))
    elif checkpoint is not None or source is None or images is None or queries is None or not (out or run):
        said = "give a run, or all of --model, --train, --queries and --out or --run (--checkpoint is for runs)"
        raise UsageError(said)
    else:
        pictures = ImageSource(queries, size=size)
        _attribute_model(source, images, pictures, method, out, run, top, typed, cache, workers, device)


def parsed_share(text: str) -> tuple[int, int]:
    """Read a text such as 3/64: the number of a share, from 1 on, and how many there are."""
    number, slash, count = text.partition("/")
    if not slash or not (number.isdecimal() and count.isdecimal()) or not 1 <= int(count) <= MOST_SHARES:
        raise UsageError(f"shard {shortened(text)}: give its number and how many there are, such as 3/64")
    if not 1 <= int(number) <= int(count):
        raise UsageError(f"shard {shortened(text)}: its number has to be from 1 to {int(count)}")
    return int(number), int(count)


def _share_of_run(folder: Path, typed: Options, method: str | None, cache: Path | None, device: str) -> Opened:
    run = Run.open(folder)
    settings, methods, _ = asked_for(typed, method, settings_of(run), run.usual_method)
    return opened_run(run, question_of(run, None, methods, settings), cache=cache, device=device)


def _share_of_model(
    model: ModelSource, train: ImageSource, typed: Options, method: str | None, cache: Path, device: str
) -> Opened:
    settings, methods, _ = asked_for(typed, method)
    question = Question(model, train.fitting(model.open(device=device)), None, methods, settings)
    opened = checked(Opened(question, cache, device=device))
    opened.question.keep(cache, opened.facts)
    return opened


def _attribute_run(
    folder: Path,
    queries: str | None,
    method: str | None,
    out: Path | None,
    typed_checkpoint: str | None,
    top: int | None,
    typed: Options,
    cache: Path | None,
    workers: Workers,
    device: str,
) -> None:
    """Attribute a run, or a checkpoint of it, whose scores the run does not keep."""
    run, own, source = Run.open(folder), folder / "scores.npz", queries or str(folder / "generated")
    if queries is None and not Path(source).exists():
        raise UsageError(
            f"{folder} has no generated pictures yet: `dtrak generate {folder}` draws some, or give --queries"
        )
    checkpoint = None if typed_checkpoint is None else run.checkpoint(typed_checkpoint)
    out = out or own
    if checkpoint is not None and out.resolve() == own.resolve():
        said = f"give another file as --out, as {own} is of the final model"
        raise UsageError(f"--checkpoint {typed_checkpoint}: {said}")
    check_not_read(out, source, str(run.train_source.source), folder / "recipe.yaml")
    check_writable(out)
    settings, methods, every = asked_for(typed, method, settings_of(run), run.usual_method)
    run.check_trained()
    question = question_of(run, run.query_source(source), methods, settings, checkpoint)
    engine = workers.chosen()
    if checkpoint is None:
        scores = attribute_run(run, question, top=top, cache=cache, device=device, engine=engine, every=every)
    else:
        opened = opened_run(run, question, cache=cache, device=device, engine=engine, every=every, one_damping=True)
        scores = answer(opened, top)
    if out != own:
        save_scores(out, scores)
    tell("The scores", out)


def _attribute_model(
    model: ModelSource,
    train: ImageSource,
    queries: ImageSource,
    method: str | None,
    out: Path | None,
    run_folder: Path | None,
    top: int | None,
    typed: Options,
    cache: Path | None,
    workers: Workers,
    device: str | None,
) -> None:
    """Attribute a model that was trained elsewhere, and write the scores, or a run that keeps them.

    Without --cache and --run, the features are kept beside the scores until these are written, so that a kill costs
    little.
    """
    settings, methods, every = asked_for(typed, method)
    engine = workers.chosen()
    if out is not None:
        check_not_read(
            out, str(train.source), str(queries.source), str(model.source), *(lora for lora, _ in model.loras)
        )
        check_writable(out)
    kept = cache or (None if run_folder is None else Run(run_folder).features)
    question = question_about(model, train, queries, methods, settings, device, kept)
    if run_folder is None:
        with kept_until_done(cache, out) as folder:
            scores = answers(question, cache=folder, top=top, device=device, engine=engine, every=every)
            assert out is not None
            save_scores(out, scores)
    else:
        assert kept is not None
        opened = Opened(question, kept, device=device, engine=engine)
        run = run_elsewhere(run_folder, possible(opened) if every else checked(opened))
        scores = attribute_run(run, question, top=top, cache=cache, device=device, engine=engine, every=every)
        if out is not None:
            save_scores(out, scores)
        tell("The run", run_folder)
    if out is not None:
        tell("The scores", out)
