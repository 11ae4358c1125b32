"""The page that answers the question: each picture with its proponents and opponents, and the credit of each group.

It is one self-contained HTML file that needs no network; a training image is embedded once, however often it is shown.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dtrak.data import Images
from dtrak.errors import UsageError
from dtrak.files import write_text
from dtrak.report.thumbnails import SMALL, data_uri
from dtrak.runs import Run
from dtrak.scores import Credit, Match, Scores, load_scores
from dtrak.timesteps import select_timesteps

QUERIES, PROPONENTS, OPPONENTS, GROUPS = 200, 5, 3, 12  # at most so many are shown
CREDITED = ("artist", "label")  # the columns that say to whom an image is owed
QUERY_SIDE, TRAIN_SIDE = 256, 128  # larger images are embedded at this size
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

__all__ = ["write_report"]


@dataclass(frozen=True)
class Answer:
    """What one method says about one query."""

    method: str
    proponents: list[Match]
    opponents: list[Match]

    @property
    def label(self) -> Any:
        """Of the strongest proponent."""
        return self.proponents[0].columns.get("label") if self.proponents else None

    @property
    def strongest(self) -> float:
        """The length of the bars is relative to this."""
        return max((abs(match.score) for match in self.proponents + self.opponents), default=0.0)


@dataclass(frozen=True)
class Query:
    id: str
    columns: dict[str, Any]
    picture: str  # a data URI
    answers: list[Answer]


@dataclass(frozen=True)
class Chart:
    """The credit of the largest groups by one method, each with its share of the training images for comparison."""

    column: str
    method: str
    bars: list[tuple[Credit, float]]
    others: list[Credit]

    @property
    def end(self) -> float:
        """The share at which the bars' scale ends."""
        return max(max(credit.high, of_training) for credit, of_training in self.bars)


def write_report(run: Run) -> Path:
    """Write report.html into the run's folder, from its scores and the images that they are about."""
    made_by, path = run.folder / "attribution.json", run.folder / "scores.npz"
    if not path.exists() or not made_by.exists():
        raise UsageError(f"{run.folder} has no scores yet: `dtrak attribute {run.folder}` makes them")
    settings, scores = json.loads(made_by.read_text()), load_scores(path)
    one = next(iter(scores.values()))  # they are all of the same images
    pictures = run.query_images(run.located(settings["queries"]))
    queries = _queries(scores, pictures.select(pictures.positions(one.query_ids, str(path))))
    train = run.train_images.select(run.train_images.positions(one.train_ids, str(path)))

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": _number, "described": _described}
    page = environment.get_template("page.html.j2").render(
        name=run.folder.resolve().name,
        summary=run.recipe.summary,
        facts=_facts(run, settings, one),
        methods=list(scores),
        queries=queries,
        query_count=len(one.query_ids),
        labels=sorted({answer.label for query in queries for answer in query.answers} - {None}),
        charts=[_chart(each, column) for column in CREDITED if column in one.columns for each in scores.values()],
        thumbnails=_thumbnails(train, queries),
        height=train.shape[1],
        width=train.shape[2],
        pixelated=max(train.shape[1:]) <= SMALL,
    )
    report = run.folder / "report.html"
    write_text(report, page)
    return report


def _queries(scores: Mapping[str, Scores], pictures: Images) -> list[Query]:
    shown = [replace(one, values=one.values[:QUERIES], query_ids=one.query_ids[:QUERIES]) for one in scores.values()]
    ranked = [(one.method, one.top(PROPONENTS), one.bottom(OPPONENTS)) for one in shown]
    return [
        Query(
            id=str(pictures.ids[q]),
            columns={name: column[q] for name, column in pictures.columns.items()},
            picture=data_uri(pictures, q, QUERY_SIDE),
            answers=[
                Answer(method, [m for m in top[q] if m.score > 0], [m for m in bottom[q] if m.score < 0])
                for method, top, bottom in ranked
            ],
        )
        for q in range(len(shown[0].query_ids))
    ]


def _thumbnails(train: Images, queries: list[Query]) -> dict[int, str]:
    """The data URIs of the training images that are shown, by position."""
    answers = [answer for query in queries for answer in query.answers]
    positions = {match.position for answer in answers for match in answer.proponents + answer.opponents}
    return {position: data_uri(train, position, TRAIN_SIDE) for position in sorted(positions)}


def _chart(scores: Scores, column: str) -> Chart:
    credits = scores.credit(column)
    of_training = [float(np.mean(scores.columns[column] == credit.group)) for credit in credits[:GROUPS]]
    return Chart(column, scores.method, list(zip(credits, of_training, strict=False)), credits[GROUPS:])


def _facts(run: Run, settings: Mapping[str, Any], scores: Scores) -> dict[str, str]:
    channels, height, width = run.train_images.shape
    model, training = run.recipe.ddpm, run.recipe.training
    total = model.timesteps
    widths = model.unet.get("block_out_channels", ["diffusers’ default"])
    facts = {
        "Model": f"DDPM for {width} × {height} {'grey' if channels == 1 else 'colour'} images, "
        f"U-Net of width {', '.join(map(str, widths))}",
        "Training": f"{training.epochs:,} epochs in batches of {training.batch_size:,}",
        "Training images": f"{len(scores.train_ids):,} from {run.recipe.data.train}",
        "Pictures asked about": f"{len(scores.query_ids):,} from {settings['queries']}",
        "Method": ", ".join(settings["method"]),
        "Objective": settings["objective"] or "the method’s own",
        "Timesteps": f"{len(select_timesteps(settings['timesteps'], total)):,} of {total:,}",
        "Parameters": settings.get("parameters") or "all",
        "Projection": "none"
        if settings["projection"] == "identity"
        else f"{settings['projection']} to {settings['projection_dim']:,} dimensions",
        "Damping": str(settings["damping"]),
        "Seed": str(settings["seed"]),
        "Time for the scores": _duration(settings["seconds"]),
    }
    versions = run.folder / "run.json"
    if versions.exists():
        facts["Versions"] = ", ".join(f"{name} {version}" for name, version in json.loads(versions.read_text()).items())
    return facts


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _number(value: float) -> str:
    """Three digits with a sign: +0.123, −1.23×10⁻⁵."""
    digits, _, exponent = f"{value:+#.3g}".partition("e")
    power = "×10" + str(int(exponent)).translate(SUPERSCRIPTS) if exponent else ""
    return digits.rstrip(".").replace("-", "−") + power


def _described(columns: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in columns.items() if value is not None)
