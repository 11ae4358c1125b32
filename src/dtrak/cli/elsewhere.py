"""`dtrak attribute --model …`: attribute a model that was trained elsewhere, and make a run of it if asked to."""

from dataclasses import dataclass
from pathlib import Path

from dtrak.cli import options
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
    from dtrak.files import check_not_read, check_writable, kept_until_done

    settings = scoring.settings()
    methods = scoring.method_names(settings)
    if out is not None:
        check_not_read(out, given.train, given.queries, given.model, given.lora)
        check_writable(out)

    from dtrak.attribution.asked import remember
    from dtrak.attribution.attributing import attribute_with
    from dtrak.attribution.scores import save_scores
    from dtrak.images.images import ImageSource
    from dtrak.models import load_model

    model = load_model(given.model, given.lora, given.prompt, given.precision)
    source = ImageSource(given.train, size=given.size).fitting(model)
    train = source.open()
    chosen, engine = options.chosen_device(device), scoring.engine
    if run is not None:
        from dtrak.runs.attributing import attribute_run
        from dtrak.runs.elsewhere import run_elsewhere

        typed = (given.model, given.lora, given.prompt, given.precision)
        made = run_elsewhere(run, model, typed, source)
        fitted = model.fitted_to(train.shape)
        asked = (made, fitted, given.queries, methods, settings)
        scores = attribute_run(*asked, top=scoring.top, cache=scoring.cache, device=chosen, engine=engine)
        tell("The run", run)
        if out is None:
            return
    else:
        assert out is not None
        fitted = model.fitted_to(train.shape)
        queries = ImageSource(given.queries, size=given.size).fitting(fitted).open()
        with kept_until_done(scoring.cache, out) as cache:
            asked_of = (model, train, queries, methods, settings)
            scores = attribute_with(*asked_of, top=scoring.top, cache=cache, device=chosen, engine=engine)
            save_scores(out, scores)
            if scoring.cache is not None:
                remember(cache, (given.model, given.lora, given.prompt), given.train, source.size, methods, settings)
            tell("The scores", out)
            return
    save_scores(out, scores)
    tell("The scores", out)
