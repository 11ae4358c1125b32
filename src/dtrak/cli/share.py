"""`dtrak attribute --shard 3/64`: one of many processes computes its share of the training images' features."""

from pathlib import Path

from dtrak.checks import shortened
from dtrak.cli.scoring import Scoring
from dtrak.errors import UsageError
from dtrak.tables import tell

MOST_SHARES = 10**6


def fill_features(
    run_folder: Path | None,
    model: tuple[str | None, str | None, str | None],
    train: str | None,
    size: int | None,
    scoring: Scoring,
    shard: str,
    device: str,
) -> None:
    """Compute one share of the features in a folder that all processes see. Nothing is scored."""
    share, (source, lora, prompt) = parse_share(shard), model
    if scoring.engine is not None:
        raise UsageError(f"--shard {shard} is computed in this process: leave out --engine, --workers and --address")
    if run_folder is not None:
        folder = _of_run(run_folder, scoring, share, device)
    elif source is None or train is None or scoring.cache is None:
        raise UsageError("--shard fills a folder of features: give a run, or all of --model, --train and --cache")
    else:
        folder = _of_model((source, lora, prompt), train, size, scoring, scoring.cache, share, device)
    tell(f"Share {share[0]} of {share[1]} of the features", folder)


def parse_share(text: str) -> tuple[int, int]:
    """Read a text such as 3/64: the number of a share, from 1 on, and how many there are."""
    number, slash, count = text.partition("/")
    if not slash or not (number.isdecimal() and count.isdecimal()) or not 1 <= int(count) <= MOST_SHARES:
        raise UsageError(f"shard {shortened(text)}: give its number and how many there are, such as 3/64")
    if not 1 <= int(number) <= int(count):
        raise UsageError(f"shard {shortened(text)}: its number has to be from 1 to {int(count)}")
    return int(number), int(count)


def _of_run(run_folder: Path, scoring: Scoring, share: tuple[int, int], device: str) -> Path:
    from dtrak.runs.run import Run
    from dtrak.runs.run_questions import opened_run, question_of, settings_of

    run = Run.open(run_folder)
    settings = scoring.settings(settings_of(run))
    question = question_of(run, None, scoring.chosen(settings, run.usual_method), settings)
    opened = opened_run(run, question, cache=scoring.cache, device=device)
    opened.fill_share(share)
    return opened.folder


def _of_model(
    model: tuple[str, str | None, str | None],
    train: str,
    size: int | None,
    scoring: Scoring,
    cache: Path,
    share: tuple[int, int],
    device: str,
) -> Path:
    from dtrak.attribution.opened import Opened, checked
    from dtrak.attribution.question import Question
    from dtrak.images.images import ImageSource
    from dtrak.models.model_source import ModelSource

    source, lora, prompt = model
    settings = scoring.settings()
    of_model = ModelSource(source, () if lora is None else ((lora, 1.0),), prompt)
    images = ImageSource(train, size=size).fitting(of_model.open(device=device))
    question = Question(of_model, images, None, scoring.chosen(settings), settings)
    opened = checked(Opened(question, cache, device=device))
    opened.question.keep(cache, opened.facts)
    opened.fill_share(share)
    return cache
