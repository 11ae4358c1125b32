"""The section of pictures: each scored picture with its strongest proponents and opponents by every method."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dtrak.attribution.scores import Match, Scores
from dtrak.attribution.self_influence import class_column
from dtrak.figures.html_pictures import ShownPicture
from dtrak.images.images import Images
from dtrak.wording import in_order

MAX_QUERIES = 200  # pictures that are shown
MAX_LISTS = 1000  # lists of matches, one for each picture and method
PROPONENTS, OPPONENTS = 5, 3  # in each list
QUERY_SIDE = 256  # larger pictures are embedded at this size


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
        """Return the greatest absolute score; the bars are relative to it."""
        return max((abs(match.score) for match in self.proponents + self.opponents), default=0.0)

    @property
    def highest(self) -> float:
        """Return the score of the strongest proponent."""
        return self.proponents[0].score if self.proponents else 0.0


@dataclass(frozen=True)
class Query:
    """One scored picture."""

    id: str
    columns: dict[str, Any]
    by_method: list[Matches]


@dataclass(frozen=True)
class QuerySection:
    """The content of the section."""

    queries: list[Query]  # that are shown
    count: int  # of all scored pictures
    column: str | None  # the column that has the classes
    classes: list[str]
    shown: dict[str, ShownPicture]  # the queries' pictures, named q0, q1, …

    @property
    def all_matches(self) -> list[Matches]:
        """Return the matches of all queries and methods."""
        return [matches for query in self.queries for matches in query.by_method]

    @property
    def train_positions(self) -> set[int]:
        """Return the positions of the training images that are shown."""
        return {match.position for one in self.all_matches for match in one.proponents + one.opponents}

    @property
    def have_self_influence(self) -> bool:
        """Tell whether a method has self-influence."""
        return any(one.self_influence is not None for one in self.all_matches)


def query_section(scores: Mapping[str, Scores], pictures: Images) -> QuerySection:
    """Collect the section's content from the scores of several methods for the same pictures."""
    first = next(iter(scores.values()))
    count = min(len(first.query_ids), MAX_QUERIES, max(1, MAX_LISTS // len(scores)))
    column = class_column(first)
    queries = [
        Query(str(pictures.ids[q]), {name: values[q] for name, values in pictures.columns.items()}, [])
        for q in range(count)
    ]
    for one in scores.values():
        part = one.of_queries(range(count))
        for query, top, bottom in zip(queries, part.top(PROPONENTS), part.bottom(OPPONENTS), strict=True):
            query.by_method.append(_matches(one, query, top, bottom, column))
    classes = in_order(matches.class_ for query in queries for matches in query.by_method if matches.class_)
    shown = {f"q{q}": ShownPicture.of(pictures, q, QUERY_SIDE) for q in range(count)}
    return QuerySection(queries, len(first.query_ids), column, classes, shown)


def _matches(scores: Scores, query: Query, top: list[Match], bottom: list[Match], column: str | None) -> Matches:
    proponents = [match for match in top if match.score > 0]
    opponents = [match for match in bottom if match.score < 0]
    class_ = None if column is None else query.columns.get(column)
    if class_ is None and column is not None and proponents:
        class_ = proponents[0].columns[column]
    self_influence = None
    if scores.self_influence is not None and proponents:
        self_influence = float(scores.self_influence[proponents[0].position])
    return Matches(scores.method, proponents, opponents, "" if class_ is None else str(class_), self_influence)
