"""Write a run's report: one HTML file that shows everything the run has, and needs no other file.

Each section of the page has a module here, which collects its content, and a template, which lays it out. A section
appears only if the run has its content. Each picture is embedded once, and all of them stay within a budget of bytes.
"""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from dtrak import wording
from dtrak.attribution.depends import what_changed
from dtrak.attribution.scores import load_scores
from dtrak.attribution.self_influence import self_influences
from dtrak.errors import DtrakError, UsageError
from dtrak.figures.html_pictures import SMALL, ShownPicture, embedded
from dtrak.figures.style import plain_value
from dtrak.files import write_text
from dtrak.images.images import Images
from dtrak.models.prompts import prompts_of
from dtrak.report.curves import damping_curve, plot, setting_curves
from dtrak.report.measured import read_measurements, trust, trust_words
from dtrak.report.overview import facts
from dtrak.report.sections import charts, query_section, read_counterfactuals
from dtrak.runs.run import SCORES, Run

TRAIN_SIDE = 128  # larger training images are embedded at this size

__all__ = ["write_report"]


def write_report(run: Run) -> Path:
    """Write report.html into the run's folder, from its images, scores and evaluations; return its path."""
    path = run.folder / SCORES
    if not path.exists():
        raise UsageError(f"{run.folder} has no scores yet: `dtrak attribute {run.folder}` makes them")
    try:
        scores = load_scores(path)
    except DtrakError as error:
        raise UsageError(f"{error}: `dtrak attribute {run.folder}` makes them again") from error
    one = next(iter(scores.values()))  # all methods have scores of the same images
    if one.question is None:
        raise UsageError(f"{path} does not say what was asked: `dtrak attribute {run.folder}` makes it again")
    asked = one.question
    pictures, train = run.query_images(run.asked_about(asked)), run.train_images
    shown = pictures.select(pictures.positions(one.query_ids, str(path)))
    for name, images in (("train", train), ("queries", pictures)):
        changed = what_changed({name: asked["facts"][name]}, {name: images.facts})
        if changed is not None:
            said = f"{changed} since its scores were made: run `dtrak attribute {run.folder}` again"
            raise UsageError(f"{run.folder}: {said}")
    if one.held is None:
        train = train.select(train.positions(one.train_ids, str(path)))

    shown_queries = query_section(scores, shown)
    self_influence = self_influences(scores)
    counterfactuals = read_counterfactuals(run.folder)
    measured = read_measurements(run)
    found_trust = trust(measured, asked["facts"])
    over_damping = damping_curve(measured)
    curves = [*([over_damping] if over_damping else []), *setting_curves(measured)]
    positions = shown_queries.train_positions.union(*(of_method.train_positions for of_method in self_influence))
    album = shown_queries.shown | {
        f"t{position}": ShownPicture.of(train, position, TRAIN_SIDE) for position in sorted(positions)
    }
    for counterfactual in counterfactuals:
        album |= counterfactual.shown

    page = (
        _environment()
        .get_template("page.html.j2")
        .render(
            name=run.folder.resolve().name,
            summary=run.summary,
            facts=facts(run, asked, one),
            trust=found_trust,
            trust_words={method: trust_words(run, found_trust, method) for method in scores},
            methods=list(scores),
            shown_queries=shown_queries,
            charts=charts(scores, len(shown_queries.queries)),
            prompts=_prompts(run, shown),
            self_influences=self_influence,
            counterfactuals=counterfactuals,
            plots=[plot(curve) for curve in curves],
            album=embedded(album),
            height=train.shape[1],
            width=train.shape[2],
            pixelated=max(train.shape[1:]) <= SMALL,
        )
    )
    report = run.folder / "report.html"
    write_text(report, page)
    return report


def _prompts(run: Run, pictures: Images) -> list[str]:
    """Return the prompt that each picture was scored with; none if the run's model takes no prompts."""
    if run.is_elsewhere:
        reads = (run.asked or {})["facts"]["model"]["reads"]
        return prompts_of(pictures, run.model_source.prompt) if reads else []
    return prompts_of(pictures, getattr(run.recipe.model, "prompt", None)) if run.recipe.is_conditional else []


def with_code(text: str) -> Markup:
    """Return a text as HTML, with what stands between backticks as code."""
    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(Markup(f"<code>{part}</code>") if place % 2 else part for place, part in enumerate(parts))


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": wording.number,
        "plain": wording.plain,
        "tenths": wording.tenths,
        "value": plain_value,
        "described": wording.described,
        "code": with_code,
        "thousands": lambda count: f"{count:,}",
    }
    return environment
