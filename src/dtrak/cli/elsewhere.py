"""`dtrak attribute --model …`: attribute a model that was trained elsewhere, and make a run of it if asked to."""

from dataclasses import dataclass
from pathlib import Path

from dtrak.cli.scoring import Scoring
from dtrak.tables import tell


@dataclass(frozen=True)
class Given:
    """What was typed about a model that was trained elsewhere."""

    model: str
    lora: str | None
    prompt: str | None
    precision: str | None
    train: str
    queries: str
    size: int | None


def attribute_model(given: Given, out: Path | None, run: Path | None, scoring: Scoring, device: str | None) -> None:
    """Attribute a model, and write the scores, or a run that keeps them.

    Without --cache and --run, the features are kept beside the scores until these are written, so that a kill costs
    little.
    """
    from dtrak.attribution.attribute import answers, question_about
    from dtrak.attribution.opened import Opened, checked, possible
    from dtrak.attribution.scores import save_scores
    from dtrak.files import check_not_read, check_writable, kept_until_done
    from dtrak.images.images import ImageSource
    from dtrak.models.model_source import ModelSource
    from dtrak.runs.run import Run
    from dtrak.runs.run_questions import attribute_run, run_elsewhere

    settings = scoring.settings()
    methods = scoring.chosen(settings)
    if out is not None:
        check_not_read(out, given.train, given.queries, given.model, given.lora)
        check_writable(out)
    loras = () if given.lora is None else ((given.lora, 1.0),)
    model = ModelSource(given.model, loras, given.prompt, given.precision)
    images, pictures = (ImageSource(one, size=given.size) for one in (given.train, given.queries))
    kept = scoring.cache or (None if run is None else Run(run).features)
    question = question_about(model, images, pictures, methods, settings, device, kept)
    if run is not None:
        opened = Opened(question, scoring.cache or Run(run).features, device=device, engine=scoring.engine)
        made = run_elsewhere(run, possible(opened) if scoring.every() else checked(opened))
        scores = attribute_run(
            made,
            question,
            top=scoring.top,
            cache=scoring.cache,
            device=device,
            engine=scoring.engine,
            every=scoring.every(),
        )
        if out is not None:
            save_scores(out, scores)
        tell("The run", run)
    else:
        with kept_until_done(scoring.cache, out) as cache:
            scores = answers(
                question,
                cache=cache,
                top=scoring.top,
                device=device,
                engine=scoring.engine,
                every=scoring.every(),
            )
            assert out is not None
            save_scores(out, scores)
    if out is not None:
        tell("The scores", out)
