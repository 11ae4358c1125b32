"""The answers: each picture asked about, with the training images that each method holds for its strongest."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dtrak.attribution.scores import Match, Scores
from dtrak.images.images import Images
from dtrak.report.thumbnails import Shown
from dtrak.report.wording import in_order

QUERIES, ANSWERS = 200, 1000  # at most so many pictures are shown, and so many answers of all methods
PROPONENTS, OPPONENTS = 5, 3
CLASSES = ("label", "artist")  # the columns that sort images into classes, the first that there is
QUERY_SIDE = 256  # larger pictures are embedded at this size


@dataclass(frozen=True)
class Answer:
    """What one method says about one query."""

    method: str
    proponents: list[Match]
    opponents: list[Match]
    class_: str  # the query's own, or that of its strongest proponent; "" if neither has one
    self_influence: float | None  # of the strongest proponent

    @property
    def strongest(self) -> float:
        """The length of the bars is relative to this."""
        return max((abs(match.score) for match in self.proponents + self.opponents), default=0.0)

    @property
    def highest(self) -> float:
        """The score of the strongest proponent."""
        return self.proponents[0].score if self.proponents else 0.0


@dataclass(frozen=True)
class Query:
    id: str
    columns: dict[str, Any]
    answers: list[Answer]


@dataclass(frozen=True)
class Answers:
    queries: list[Query]
    count: int  # of all pictures that were asked about
    column: str | None  # that has the classes
    classes: list[str]
    shown: dict[str, Shown]  # the queries' pictures: q0, q1, …

    @property
    def every(self) -> list[Answer]:
        return [answer for query in self.queries for answer in query.answers]

    @property
    def train_positions(self) -> set[int]:
        """Of the training images that are shown."""
        return {match.position for answer in self.every for match in answer.proponents + answer.opponents}

    @property
    def have_self_influence(self) -> bool:
        return any(answer.self_influence is not None for answer in self.every)


def answers(scores: Mapping[str, Scores], pictures: Images) -> Answers:
    """The scores of several methods for the same pictures, as they are shown."""
    first = next(iter(scores.values()))
    count = min(len(first.query_ids), QUERIES, max(1, ANSWERS // len(scores)))
    column = class_column(first)
    queries = [
        Query(str(pictures.ids[q]), {name: values[q] for name, values in pictures.columns.items()}, [])
        for q in range(count)
    ]
    for one in scores.values():
        part = replace(one, values=one.values[:count], query_ids=one.query_ids[:count])
        for query, top, bottom in zip(queries, part.top(PROPONENTS), part.bottom(OPPONENTS), strict=True):
            query.answers.append(_answer(one, query, top, bottom, column))
    classes = in_order(answer.class_ for query in queries for answer in query.answers if answer.class_)
    shown = {f"q{q}": Shown.of(pictures, q, QUERY_SIDE) for q in range(count)}
    return Answers(queries, len(first.query_ids), column, classes, shown)


def class_column(scores: Scores) -> str | None:
    return next((column for column in CLASSES if column in scores.columns), None)


def _answer(scores: Scores, query: Query, top: list[Match], bottom: list[Match], column: str | None) -> Answer:
    proponents = [match for match in top if match.score > 0]
    opponents = [match for match in bottom if match.score < 0]
    class_ = None if column is None else query.columns.get(column)
    if class_ is None and column is not None and proponents:
        class_ = proponents[0].columns[column]
    on_itself = scores.self_influence
    own = float(on_itself[proponents[0].position]) if on_itself is not None and proponents else None
    return Answer(scores.method, proponents, opponents, "" if class_ is None else str(class_), own)
