"""What the sections of a report show: pictures with their strongest images, the credit of groups, counterfactuals."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.cbook import boxplot_stats
from numpy.typing import NDArray

from dtrak.attribution.credit import Credit
from dtrak.attribution.scores import Match, Scores
from dtrak.attribution.self_influence import class_column
from dtrak.errors import DtrakError
from dtrak.figures.html_pictures import ShownPicture
from dtrak.images.images import Images
from dtrak.wording import in_order

MAX_QUERIES = 200  # pictures that are shown
MAX_LISTS = 1000  # lists of matches, one for each picture and method
PROPONENTS, OPPONENTS = 5, 3  # in each list
QUERY_SIDE = 256  # larger pictures are embedded at this size
MAX_GROUPS = 12  # that are shown, the largest ones
CREDIT_COLUMNS = ("artist", "label")  # the columns whose values are groups
MAX_ORIGINALS = 60  # that are shown
SIDE = 128  # larger originals are embedded at this size
WHISKER = 1.5  # the greatest length of a whisker, in lengths of the box


@dataclass(frozen=True)
class Matches:
    """The strongest training images for one query by one method."""

    method: str
    proponents: list[Match]
    opponents: list[Match]
    class_: str  # the query's class, or that of its strongest proponent; "" if neither has one
    self_influence: float | None  # of the strongest proponent

    @property
    def strongest(self) -> float:
        """The greatest absolute score; the bars are relative to it."""
        return max((abs(match.score) for match in self.proponents + self.opponents), default=0.0)

    @property
    def highest(self) -> float:
        return self.proponents[0].score if self.proponents else 0.0


@dataclass(frozen=True)
class Query:
    """One scored picture."""

    id: str
    columns: dict[str, Any]
    by_method: list[Matches]


@dataclass(frozen=True)
class QuerySection:
    """The pictures that are shown, out of `count`."""

    queries: list[Query]
    count: int
    column: str | None  # the column that has the classes
    classes: list[str]
    shown: dict[str, ShownPicture]  # the queries' pictures, named q0, q1, …
    train_positions: set[int]  # of the training images that are shown
    have_self_influence: bool  # whether a method has


def query_section(scores: Mapping[str, Scores], pictures: Images) -> QuerySection:
    """Collect the section's content from the scores of several methods for the same pictures."""
    first = next(iter(scores.values()))
    count = min(len(first.query_ids), MAX_QUERIES, max(1, MAX_LISTS // len(scores)))
    column, every = class_column(first), list[Matches]()
    queries = [
        Query(str(pictures.ids[q]), {name: values[q] for name, values in pictures.columns.items()}, [])
        for q in range(count)
    ]
    for name, one in scores.items():
        part = one.of_queries(range(count))
        for query, top, bottom in zip(queries, part.top(PROPONENTS), part.bottom(OPPONENTS), strict=True):
            proponents, opponents = [m for m in top if m.score > 0], [m for m in bottom if m.score < 0]
            class_ = None if column is None else query.columns.get(column)
            if class_ is None and column is not None and proponents:
                class_ = proponents[0].columns[column]
            own = None
            if one.self_influence is not None and proponents:
                own = float(one.self_influence[proponents[0].position])
            query.by_method.append(Matches(name, proponents, opponents, "" if class_ is None else str(class_), own))
            every.append(query.by_method[-1])
    return QuerySection(
        queries,
        len(first.query_ids),
        column,
        in_order(matches.class_ for query in queries for matches in query.by_method if matches.class_),
        {f"q{q}": ShownPicture.of(pictures, q, QUERY_SIDE) for q in range(count)},
        {match.position for one in every for match in one.proponents + one.opponents},
        any(one.self_influence is not None for one in every),
    )


@dataclass(frozen=True)
class Chart:
    """The credit of groups by one method."""

    column: str
    method: str
    bars: list[tuple[Credit, float]]  # the largest groups, with their share of the training images
    others: list[Credit]  # the groups without a bar
    groups: list[tuple[str, float]]  # all groups, with their share of the training images in percent
    by_query: list[list[tuple[int, float, float, float]]]  # for each shown picture: index in `groups`, percents

    @property
    def end(self) -> float:
        """The share at which the scale of the bars ends."""
        return max(max(credit.high, of_training) for credit, of_training in self.bars)


def charts(scores: Mapping[str, Scores], queries: int) -> list[Chart]:
    """Return a chart for every credit column of the images and every method.

    A chart also has the credit for each of the first `queries` pictures alone: the largest shares, the largest first.
    """
    found = []
    for column, one in [(column, one) for column in CREDIT_COLUMNS for one in scores.values()]:
        if column not in one.credit_columns:
            continue
        credits, groups = one.credit(column), one.groups(column)
        of_training = dict(zip(groups.names.tolist(), (groups.sizes / one.images).tolist(), strict=True))
        by_query = []
        for shares, intervals in zip(groups.shares[:queries], groups.intervals[:queries], strict=True):
            percents = np.round(100 * np.column_stack([shares, intervals]), 1)
            largest = np.argsort(-shares, kind="stable")[:MAX_GROUPS]
            by_query.append([(int(g), *percents[g].tolist()) for g in largest])
        bars = [(credit, of_training[credit.group]) for credit in credits[:MAX_GROUPS]]
        named = [(str(name), round(100 * share, 2)) for name, share in of_training.items()]
        found.append(Chart(column, one.method, bars, credits[MAX_GROUPS:], named, by_query))
    return found


@dataclass(frozen=True)
class Box:
    """One box of a boxplot: a method's quartiles, and the ends of the whiskers, at most WHISKER boxes from them."""

    method: str
    low: float
    first: float  # quartile
    median: float
    third: float  # quartile
    high: float
    values: list[float]


@dataclass(frozen=True)
class Panel:
    """A boxplot of one distance, with a box for each method."""

    title: str
    better: str  # the direction in which scores are better
    digits: int  # after the point
    boxes: list[Box]

    def percent(self, value: float) -> float:
        """Return the position of a value on the scale, in percent of its length."""
        values = [value for box in self.boxes for value in box.values]
        low, high = min(values), max(values)
        margin = 0.04 * (high - low) or 1.0
        return 100 * (value - low + margin) / (high - low + 2 * margin)


@dataclass(frozen=True)
class Redrawn:
    """A picture that was drawn without one method's strongest images, and its distances to the original."""

    method: str
    picture: str  # its name in `CounterfactualSection.shown`
    l2: float
    cosine: float


@dataclass(frozen=True)
class Original:
    """An original picture, and how it was drawn again for each method."""

    id: str
    picture: str
    redrawn: list[Redrawn]


@dataclass(frozen=True)
class CounterfactualSection:
    """Originals beside pictures of models that were trained without their strongest images, at one timestep."""

    step: int | None  # None is the end of the trajectory, the finished picture
    train: int
    removed: int
    queries: int
    panels: list[Panel]
    originals: list[Original]
    shown: dict[str, ShownPicture]


def read_counterfactuals(folder: Path) -> list[CounterfactualSection]:
    """Read a run's counterfactuals: those of the finished pictures first, then the smallest timestep first."""
    home, found = folder / "counterfactual", []
    for path in (home / "counterfactual.json", *home.glob("step-*/counterfactual.json")):
        if not path.exists():
            continue
        try:
            with np.load(path.with_name("pictures.npz"), allow_pickle=False) as file:
                found.append(_counterfactual(json.loads(path.read_text()), dict(file)))
        except Exception as error:  # zip and numpy raise many kinds of errors for damaged files
            raise DtrakError(f"{path.parent} is not what `dtrak evaluate counterfactual` writes: {error!r}") from error
    return sorted(found, key=lambda one: -1 if one.step is None else one.step)


def _counterfactual(content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> CounterfactualSection:
    """Collect the section's content from counterfactual.json and pictures.npz."""
    methods, step, shown, originals, panels = arrays["methods"].tolist(), content["step"], {}, [], []
    l2, cosine = (
        {name: np.array(content["methods"][name][measure]["per_query"]) for name in methods}
        for measure in ("l2", "cosine")
    )
    prefix = "c" if step is None else f"c{step}-"
    for q, id_ in enumerate(arrays["ids"].tolist()[:MAX_ORIGINALS]):
        shown[f"{prefix}{q}"] = _shown(arrays["originals"], q)
        redrawn = []
        for index, method in enumerate(methods):
            shown[f"{prefix}{q}-{index}"] = _shown(arrays["counterfactuals"][index], q)
            redrawn.append(Redrawn(method, f"{prefix}{q}-{index}", float(l2[method][q]), float(cosine[method][q])))
        originals.append(Original(str(id_), f"{prefix}{q}", redrawn))
    for title, better, digits, by_method in (
        ("ℓ2 distance to the original", "further is better", 2, l2),
        (f"Cosine of {Path(content['encoder']).name}", "less is better", 3, cosine),
    ):
        boxes = []
        for method, values in by_method.items():
            (one,) = boxplot_stats(values, whis=WHISKER)
            low, first, median, third, high = (float(one[name]) for name in ("whislo", "q1", "med", "q3", "whishi"))
            boxes.append(Box(method, low, first, median, third, high, values.tolist()))
        panels.append(Panel(title, better, digits, boxes))
    queries = len(content["queries"])
    return CounterfactualSection(step, content["train"], content["removed"], queries, panels, originals, shown)


def _shown(pictures: NDArray[np.uint8], position: int) -> ShownPicture:
    return ShownPicture(lambda: pictures[position], SIDE)
