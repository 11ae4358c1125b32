"""The questions that a run asks: with its model and images, the settings of its recipe, and the files of the run."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from dtrak.attribution import depends
from dtrak.attribution.answer import answer
from dtrak.attribution.opened import Opened, checked, possible
from dtrak.attribution.question import Question
from dtrak.attribution.required_gradients import check_objective
from dtrak.attribution.scores import Scores, load_scores, save_scores
from dtrak.attribution.settings import Settings
from dtrak.checks import check_number
from dtrak.engines import Engine
from dtrak.errors import DtrakError, UsageError
from dtrak.fingerprints import Facts
from dtrak.images.images import ImageSource
from dtrak.methods import Method
from dtrak.models.model_source import ModelSource
from dtrak.runs.run import BENCHMARK, QUESTION, RETRAINED, SCORES, Run

FOLDERS = ("checkpoints", "retrained", "latents")  # settings that name a folder


def settings_of(run: Run) -> Settings:
    """Return the settings of the run's recipe, with the run's own checkpoints, latents and retrained models."""
    if run.is_elsewhere:
        return run.question.settings
    recipe = run.recipe
    settings = Settings(**{one.name: getattr(recipe.attribution, one.name) for one in fields(Settings)})
    settings = replace(settings, ddim_steps=recipe.generation.steps)
    if recipe.is_conditional:
        settings = replace(settings, guidance=recipe.generation.guidance, latents=run.latents)
    if settings.checkpoints is None and (run.folder / "checkpoints").exists():
        settings = replace(settings, checkpoints=run.folder / "checkpoints")
    for name in (RETRAINED, BENCHMARK):
        if settings.retrained is None and (run.folder / name / "masks.npy").exists():  # it is written last
            settings = replace(settings, retrained=run.folder / name)
    return settings


def question_of(
    run: Run,
    queries: ImageSource | None,
    methods: Sequence[Method],
    settings: Settings,
    checkpoint: Path | None = None,
) -> Question:
    """Return the question about a run's training images; an earlier `checkpoint` may stand for its model."""
    model = run.model_source if checkpoint is None else ModelSource(str(checkpoint))
    return Question(model, run.train_source, queries, tuple(methods), settings)


def opened_run(
    run: Run,
    question: Question,
    *,
    cache: Path | None = None,
    device: str | None = None,
    engine: Engine | None = None,
    every: bool = False,
    one_damping: bool = False,
) -> Opened:
    """Open a question about a run. If `every` method was asked for, those whose needs are not met are left out."""
    check_objective(question.methods, question.settings)
    folder = cache or run.features
    opened = Opened(question, folder, device=device, engine=engine, one_damping=one_damping)
    return possible(opened) if every else checked(opened)


def attribute_run(
    run: Run,
    question: Question,
    *,
    top: int | None = None,
    cache: Path | None = None,
    device: str | None = None,
    engine: Engine | None = None,
    every: bool = False,
) -> dict[str, Scores]:
    """Answer a question about a run, which keeps the scores in scores.npz for its report.

    Kept scores of the same question are returned.
    """
    if top is not None:
        check_number("top", top)
    opened = opened_run(run, question, cache=cache, device=device, engine=engine, every=every, one_damping=True)
    with suppress(DtrakError):  # missing or damaged scores are computed again
        kept = load_scores(run.folder / SCORES)
        if is_answer(kept, opened, top):
            return kept
    asked = renamed(question.asked(opened.facts), run.portable)
    scores = {name: replace(one, question=asked) for name, one in answer(opened, top).items()}
    save_scores(run.folder / SCORES, scores)
    return scores


def last_question(run: Run) -> Question | None:
    """Return the question of the run's last scores; None if there are none."""
    asked = run.asked
    if asked is None:
        return None
    return Question.of_given(renamed(asked, run.located)["given"], str(run.folder / SCORES))


def renamed(asked: Mapping[str, Any], name: Callable[[str], str]) -> dict[str, Any]:
    """Return a question as data with other names of its files, such as names that are relative to a run's folder."""
    given = asked["given"]
    sources = {
        one: {**given[one], "source": name(given[one]["source"])} for one in ("model", "train", "queries") if given[one]
    }
    folders = {one: name(given["settings"][one]) for one in FOLDERS if given["settings"][one] is not None}
    return {**asked, "given": {**given, **sources, "settings": {**given["settings"], **folders}}}


def is_answer(kept: dict[str, Scores], opened: Opened, top: int | None) -> bool:
    """Return whether kept scores are the answer to this question, with the columns that the images have now."""
    methods = opened.question.methods
    if list(kept) != [one.name for one in methods]:
        return False
    for method in methods:
        scores = kept[method.name]
        each = None if scores.held is None else scores.held.each
        wanted = None if top is None else min(top, len(opened.images("train")))
        if scores.question is None or each != wanted:
            return False
        if depends.what_changed(_shown(scores.question["facts"], method), _shown(opened.facts, method)) is not None:
            return False
    return True


def _shown(facts: Facts, method: Method) -> Facts:
    return depends.of_what_is_shown(facts, method) if method.name in facts["methods"] else {}


def run_elsewhere(folder: Path, opened: Opened) -> Run:
    """Make the run of a model that was trained elsewhere, or open it again; another model or other images are refused.

    Nothing of the folder is changed before it is known that the question is about the same model and images.
    """
    if (folder / "recipe.yaml").exists():
        raise UsageError(f"{folder} is a run of a recipe: give another --run")
    if (folder / QUESTION).exists():
        _, then = Question.load(folder / QUESTION)
        for name in ("model", "train"):
            changed = depends.what_changed(_about(then, name), _about(opened.facts, name))
            if changed is not None:
                raise UsageError(f"{folder} is the run of another question: {changed}; give another --run")
    Run(folder).check_free(None)
    opened.question.save(folder / QUESTION, opened.facts)
    return Run.open(folder)


def _about(facts: Facts, name: str) -> Facts:
    """Return what makes a run another one: its model's weights, or its images' pixels."""
    return {name: {part: facts[name][part] for part in {"model": ("weights", "network"), "train": ("pixels",)}[name]}}
