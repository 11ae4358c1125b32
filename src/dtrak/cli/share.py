"""`dtrak attribute --shard 3/64`: one of many processes computes its share of the training images' features."""

from dataclasses import replace
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
    from dtrak.inputs.gradients import fill_share
    from dtrak.runs.attributing import prepare_run, settings_of
    from dtrak.runs.run import Run

    run = Run.open(run_folder)
    settings = scoring.settings(settings_of(run))
    methods = scoring.method_names(settings, run.recipe.attribution.method)
    task, _ = prepare_run(run, run.model().to(device), run.train_images.first(1), methods, settings, scoring.cache)
    fill_share(replace(task, share=share))
    return task.folder


def _of_model(
    model: tuple[str, str | None, str | None],
    train: str,
    size: int | None,
    scoring: Scoring,
    cache: Path,
    share: tuple[int, int],
    device: str,
) -> Path:
    from dtrak.attribution.asked import remember
    from dtrak.attribution.preparing import prepare
    from dtrak.images.images import ImageSource
    from dtrak.inputs.gradients import fill_share
    from dtrak.models import load_model

    settings = scoring.settings()
    methods, opened = scoring.method_names(settings), load_model(*model).to(device)
    source = ImageSource(train, size=size).fitting(opened)
    images = source.open()
    task, _ = prepare(opened, images, images.first(1), methods, settings, cache)
    fill_share(replace(task, share=share))
    remember(cache, model, train, source.size, methods, settings)
    return cache
