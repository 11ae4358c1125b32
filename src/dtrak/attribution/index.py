"""An index answers which of millions of training images made a picture. It has one compressed vector for each image.

Vectors give a short list, and its images are scored again exactly, from their features. The folder of an index has
`index.json`, with the question that it answers and its facts then, the matrices B that compress features, and a folder
for the images it was made of and for those that were added: their ids and columns, their vectors, and the place of
their features.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from dtrak.attribution.compressing import Part
from dtrak.attribution.formula_inputs import inputs_of, objective_groups
from dtrak.attribution.opened import Opened
from dtrak.attribution.question import Question
from dtrak.attribution.required_gradients import spec_of
from dtrak.attribution.scores import Scores
from dtrak.attribution.short_lists import ShortList
from dtrak.attribution.top_scores import Held
from dtrak.checks import check_number, first_mistake
from dtrak.contracts import Rows
from dtrak.errors import DtrakError, UsageError
from dtrak.features.store import FeatureStore
from dtrak.images.images import Images, ImageSource
from dtrak.kernels.rows import CopyRows
from dtrak.methods.method import Gradients, Method

FILE = "index.json"
SHORT_LIST = 200  # images that are scored again for each query, at least
TIMES_TOP = 5  # and at least so many times the images that are asked for


@dataclass(frozen=True)
class Segment:
    """Some images of an index: a folder in the index, and where their features are."""

    folder: str
    features: str  # the folder of their features
    stores: dict[str, str]  # by objective, the names of the stores
    digests: dict[str, str]  # of the stores, by objective
    rows: int
    images: dict[str, Any]  # where the images come from, as a question gives them
    shape: tuple[int, int, int]


@dataclass(frozen=True)
class Description:
    """What index.json says."""

    question: dict[str, Any]  # what was given, and the facts then
    dampings: list[float]  # λ of each part
    numbers: int  # m
    segments: list[Segment]
    removed: list[int] = field(default_factory=list)  # places of images, counted through all segments
    version: int = 2


def read_description(folder: str | Path) -> Description:
    """Read index.json; refuse a folder that has none."""
    path = Path(folder) / FILE
    try:
        return TypeAdapter(Description).validate_python(json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        raise UsageError(f"{folder} is not an index: it has no {FILE} (`dtrak index` makes one)") from None
    except ValidationError as error:
        raise DtrakError(f"{path} is not that of an index: {first_mistake(error)}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DtrakError(f"{path} is not that of an index: {error}") from None


class Index:
    """An index on disk. `dtrak index` or `build_index` makes one.

    >>> import subprocess, sys
    >>> command = [sys.executable, "-m", "dtrak", "index", "runs/digits", "--out", "INDEX"]
    >>> done = subprocess.run(command, check=True, capture_output=True)
    >>> import dtrak
    >>> index = dtrak.Index.open("INDEX")
    >>> len(index), len(index.search("runs/digits/generated/seed-00000.png", top=5).top(5)[0])
    (1000, 5)
    """

    def __init__(self, folder: Path, description: Description) -> None:
        self.folder = folder
        self.description = description

    @classmethod
    def open(cls, folder: str | Path) -> "Index":
        """Open an index; refuse a folder that is none, or one whose features have changed."""
        found = cls(Path(folder), read_description(folder))
        for segment in found.description.segments:
            for objective, store in found.stores(segment).items():
                if store.digest != segment.digests[objective]:
                    raise DtrakError(
                        f"{folder}: the features in {store.folder} have changed since the index was made: make it "
                        "again with `dtrak index`"
                    )
        return found

    def __len__(self) -> int:
        """Return how many images can be found."""
        return sum(segment.rows for segment in self.description.segments) - len(self.description.removed)

    def search(
        self,
        queries: Images | ImageSource | str | Path,
        top: int = 20,
        *,
        device: str | None = None,
        folder: Path | None = None,
    ) -> Scores:
        """Return the `top` strongest proponents of each query, with their exact scores.

        The model is opened from where it was when the index was made; another one is refused. Features of the queries
        are kept in the `folder`, if one is given.
        """
        check_number("top", top)
        self.opened.device = device or self.opened.device
        given = queries if isinstance(queries, ImageSource) else ImageSource(_plain(queries))
        source = given.fitting(self.opened.model())
        with nullcontext(folder) if folder is not None else TemporaryDirectory() as place:
            asked = self.opened.with_queries(source, Path(place))
            stores = asked.stores(spec_of(self.method, self.settings), "queries")
            features = [rows[slice(None)] for rows in self._rows_of(stores)]
            positions, values = self.nearest(features, top)
            question = asked.question.asked(asked.facts)
        ids, columns = self.ids[positions], {name: column[positions] for name, column in self.columns.items()}
        held = Held(positions.shape[1], len(self.ids), positions, {}, has_lowest=False)
        images = source.open()
        return Scores(values, ids, images.ids, self.method.name, columns, queries=images, held=held, question=question)

    def nearest(
        self, features: Sequence[NDArray[np.float32]], top: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the places [Q, top] of the strongest proponents and their exact scores, the highest first.

        `features` are those of the queries for each part of the method, [Q, C, k].
        """
        top = min(top, len(self))
        short = max(SHORT_LIST, TIMES_TOP * top)
        lifted = [part.solved(one) / len(self.parts) for part, one in zip(self.parts, features, strict=True)]
        vectors = sum(one.reshape(len(one), -1) @ matrix for one, matrix in zip(features, self.matrices, strict=True))
        candidates = self._short_lists(np.asarray(vectors, dtype=np.float32), short)
        found = [self._ranked(candidates[q], [one[q] for one in lifted], top) for q in range(len(candidates))]
        return np.stack([places for places, _ in found]), np.stack([scores for _, scores in found])

    def _short_lists(self, vectors: NDArray[np.float32], count: int) -> list[NDArray[np.int64]]:
        """Return the places of the images with the largest products with each query, without those removed."""
        more = count + len(self.description.removed)
        found = [one.nearest(vectors, more) + start for one, start in zip(self._lists, self._starts, strict=True)]
        joined = np.concatenate(found, axis=1)
        if not self.description.removed:
            return list(joined)
        return [row[~np.isin(row, self.description.removed)] for row in joined]

    def _ranked(
        self, places: NDArray[np.int64], lifted: list[NDArray[np.float32]], top: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Score images of a short list exactly, and return the places and scores of the strongest."""
        places = np.sort(places)
        segments = np.searchsorted(self._starts, places, side="right") - 1
        scores = np.zeros(len(places), dtype=np.float32)
        for number, (rows, start) in enumerate(zip(self._rows, self._starts, strict=True)):
            chosen = segments == number
            if chosen.any():
                at = (places[chosen] - start).tolist()
                scores[chosen] = sum(
                    one.at(at).flatten(1).numpy() @ back for one, back in zip(rows, lifted, strict=True)
                )
        order = np.argsort(-scores, kind="stable")[:top]
        exact = scores[order]
        return places[order], exact * np.abs(exact) if self.method.square else exact

    def prepare(self) -> None:
        """Open all files now, so that the first question takes as long as others."""
        _ = self.ids, self.columns, self.matrices, self._rows, self._lists
        _ = [part.solved(np.zeros((1, *part.rows.shape), dtype=np.float32)) for part in self.parts]

    # what is in the folder

    @cached_property
    def ids(self) -> NDArray[Any]:
        """The ids of all images, those removed too, [N]."""
        return np.concatenate([np.load(self.folder / one.folder / "ids.npy") for one in self.description.segments])

    @cached_property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns of all images, each [N]; images without a column have an empty text in it."""
        segments, found = self.description.segments, {}
        files = [dict(np.load(self.folder / one.folder / "columns.npz")) for one in segments]
        for name in dict.fromkeys(name for file in files for name in file):
            pairs = zip(files, segments, strict=True)
            parts = [file.get(name, np.full(one.rows, "")) for file, one in pairs]
            same = len({part.dtype.kind for part in parts}) == 1
            found[name] = np.concatenate(parts if same else [part.astype(str) for part in parts])
        return found

    @cached_property
    def matrices(self) -> list[NDArray[np.float32]]:
        """B [C·k, m] of each part."""
        count = len(self.description.dampings)
        return [np.load(self.folder / f"matrix-{number}.npy", mmap_mode="r") for number in range(count)]

    @cached_property
    def parts(self) -> list[Part]:
        """The kernels that the index was made with."""
        fitted = [one.fitted for one in inputs_of(self.opened, self.method, slice(0, 0))]
        pairs = zip(fitted, self.description.dampings, strict=True)
        return [Part.of(one, self.method.name, damping) for one, damping in pairs]

    @cached_property
    def _rows(self) -> list[list[Rows]]:
        """The features of each segment, for each part."""
        return [list(self._rows_of(self.stores(segment))) for segment in self.description.segments]

    def _rows_of(self, stores: Mapping[str, FeatureStore]) -> list[CopyRows]:
        """Return the rows of each part."""
        needs = self.method.needs
        assert isinstance(needs, Gradients)
        groups = objective_groups(self.method, self.settings)
        return [CopyRows([stores[one] for one in group], needs.unit) for group in groups]

    def stores(self, segment: Segment) -> dict[str, FeatureStore]:
        """Return the features of a segment, by objective."""
        folder = self.folder / segment.features
        return {objective: FeatureStore.open(folder / name) for objective, name in segment.stores.items()}

    @cached_property
    def _lists(self) -> list[ShortList]:
        return [ShortList(self.folder / one.folder) for one in self.description.segments]

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """The place of the first image of each segment."""
        return np.cumsum([0, *(one.rows for one in self.description.segments[:-1])])

    @cached_property
    def question(self) -> Question:
        """The question that the index answers, for any queries."""
        return Question.of_given(self.description.question["given"], str(self.folder / FILE))

    @property
    def settings(self) -> Any:
        return self.question.settings

    @property
    def method(self) -> Method:
        """The method whose scores the index gives."""
        return self.question.methods[0]

    @cached_property
    def opened(self) -> Opened:
        """The question with the features of the first segment; the model is opened for searches alone."""
        first = self.description.segments[0]
        facts = self.description.question["facts"]
        return Opened(self.question, self.folder / first.features, facts=facts, train_stores=self.stores(first))


def _plain(queries: Images | str | Path) -> Images | str:
    return queries if isinstance(queries, Images) else str(queries)
