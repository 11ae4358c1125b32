"""An index answers which of millions of training images made a picture. It has one compressed vector for each image.

Vectors give a short list, and its images are scored again exactly, from their features. The folder of an index has
`index.json`, the matrices B that compress features, and a folder for the images it was made of and for those that were
added: their ids and columns, their vectors, and the place of their features.
"""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from dtrak.attribution.compressing import Part
from dtrak.attribution.scores import Scores
from dtrak.attribution.scoring import squared
from dtrak.attribution.short_lists import ShortList
from dtrak.attribution.top_scores import Held
from dtrak.checks import check_number, first_mistake
from dtrak.contracts import Rows
from dtrak.errors import DtrakError, UsageError
from dtrak.features.store import FeatureStore
from dtrak.images.images import Images, load_images
from dtrak.inputs.arrays import KernelVectors
from dtrak.inputs.gradients import GradientSource, with_stores, without_queries
from dtrak.inputs.needs import needed_by
from dtrak.inputs.settings import Settings
from dtrak.inputs.task import Task
from dtrak.methods import METHODS, Gradients, Method

if TYPE_CHECKING:
    from dtrak.models import DiffusionModel

FILE = "index.json"
SHORT_LIST = 200  # images that are scored again for each query, at least
TIMES_TOP = 5  # and at least so many times the images that are asked for


@dataclass(frozen=True)
class Origin:
    """Where images come from, so that they can be shown."""

    source: str  # what `load_images` takes
    shape: tuple[int, int, int]  # (C, H, W)
    crop: int | None = None
    size: int | None = None


@dataclass(frozen=True)
class Segment:
    """Some images of an index: a folder in the index, the folder of their features, and what these were."""

    folder: str
    features: str
    digests: dict[str, str]  # of the stores of features, by name
    rows: int
    origin: Origin | None = None


@dataclass(frozen=True)
class Description:
    """What index.json says."""

    method: str
    dampings: list[float]  # λ of each part
    numbers: int  # m
    model: str  # what `load_model` takes
    lora: str | None
    prompt: str | None
    fingerprint: str  # of the model
    settings: dict[str, Any]
    segments: list[Segment]
    removed: list[int] = field(default_factory=list)  # places of images, counted through all segments
    version: int = 1


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
        path = Path(folder) / FILE
        try:
            found = cls(Path(folder), TypeAdapter(Description).validate_python(json.loads(path.read_text("utf-8"))))
        except FileNotFoundError:
            raise UsageError(f"{folder} is not an index: it has no {FILE} (`dtrak index` makes one)") from None
        except ValidationError as error:
            raise DtrakError(f"{path} is not that of an index: {first_mistake(error)}") from None
        except (OSError, ValueError, RecursionError) as error:
            raise DtrakError(f"{path} is not that of an index: {error}") from None
        for segment in found.description.segments:
            for name, digest in segment.digests.items():
                if FeatureStore.open(found.features_folder(segment) / name).digest != digest:
                    raise DtrakError(
                        f"{folder}: the features in {found.features_folder(segment)} have changed since the index was "
                        "made: make it again with `dtrak index`"
                    )
        return found

    def __len__(self) -> int:
        """Return how many images can be found."""
        return sum(segment.rows for segment in self.description.segments) - len(self.description.removed)

    def search(
        self,
        queries: Images | str | Path,
        top: int = 20,
        *,
        model: "DiffusionModel | None" = None,
        folder: Path | None = None,
    ) -> Scores:
        """Return the `top` strongest proponents of each query, with their exact scores.

        The model is opened from where it was when the index was made, unless it is given. Features of the queries are
        kept in the `folder`, if one is given.
        """
        check_number("top", top)
        asked = queries if isinstance(queries, Images) else load_images(str(queries))
        with nullcontext(folder) if folder is not None else TemporaryDirectory() as place:
            task = self.task(asked, Path(place), model)
            features = [vectors.queries for vectors in self.source.inputs(task)]
        positions, values = self.nearest(features, top)
        ids, columns = self.ids[positions], {name: column[positions] for name, column in self.columns.items()}
        held = Held(positions.shape[1], len(self.ids), positions, {}, has_lowest=False)
        return Scores(values, ids, asked.ids, self.description.method, columns, held=held)

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
        return places[order], squared(self.method, scores[order])

    def prepare(self) -> None:
        """Open all files now, so that the first question takes as long as others."""
        _ = self.ids, self.columns, self.matrices, self._rows, self._lists
        _ = [part.whitened([0]) for part in self.parts]

    # what is in the folder

    @cached_property
    def ids(self) -> NDArray[Any]:
        """The ids of all images, those removed too, [N]."""
        return np.concatenate([np.load(self.folder / one.folder / "ids.npy") for one in self.description.segments])

    @cached_property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns of all images, each [N]."""
        files = [np.load(self.folder / one.folder / "columns.npz") for one in self.description.segments]
        shared = [name for name in files[0] if all(name in file for file in files)]
        return {name: np.concatenate([file[name] for file in files]) for name in shared}

    @cached_property
    def matrices(self) -> list[NDArray[np.float32]]:
        """B [C·k, m] of each part."""
        count = len(self.description.dampings)
        return [np.load(self.folder / f"matrix-{number}.npy", mmap_mode="r") for number in range(count)]

    @cached_property
    def parts(self) -> list[Part]:
        """The kernels that the index was made with."""
        of_parts = zip(self._inputs(self.description.segments[0]), self.description.dampings, strict=True)
        return [Part.of(one, self.description.method, damping) for one, damping in of_parts]

    @cached_property
    def _rows(self) -> list[list[Rows]]:
        """The features of each segment, for each part."""
        return [[one.train for one in self._inputs(segment)] for segment in self.description.segments]

    @cached_property
    def _lists(self) -> list[ShortList]:
        return [ShortList(self.folder / one.folder) for one in self.description.segments]

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """The place of the first image of each segment."""
        return np.cumsum([0, *(one.rows for one in self.description.segments[:-1])])

    @cached_property
    def settings(self) -> Settings:
        """The settings that features are made with."""
        return TypeAdapter(Settings).validate_python(self.description.settings)

    @cached_property
    def method(self) -> Method:
        """The method whose scores the index gives."""
        return METHODS.choose(self.description.method)

    @property
    def source(self) -> GradientSource:
        needs = self.method.needs
        assert isinstance(needs, Gradients)
        return GradientSource(self.method, needs)

    def features_folder(self, segment: Segment) -> Path:
        """Return the folder of a segment's features; those of added images are in the index."""
        return self.folder / segment.features

    def task(self, queries: Images, folder: Path, model: "DiffusionModel | None" = None) -> Task:
        """Return the task of scoring the images for these queries; what is made of the queries is kept in a folder."""
        found = replace(self._stored, model=model or self.model(), train=queries, folder=folder)
        return found.with_queries(queries)

    @cached_property
    def _stored(self) -> Task:
        """A task with the features of the first segment, which are looked through once."""
        return self._with_features(self.description.segments[0])

    def _with_features(self, segment: Segment) -> Task:
        needed = needed_by([self.method], self.settings.objective, None)
        nothing: Any = None  # features are there, so neither the model nor the images are needed
        task = Task(nothing, nothing, nothing, self.settings, self.folder, needed)
        return with_stores(task, self.source, self.features_folder(segment), segment.digests)

    def model(self) -> "DiffusionModel":
        """Open the model of the index; refuse it if it has changed."""
        from dtrak.models import load_model

        said = self.description
        found = load_model(said.model, said.lora, said.prompt)
        if found.fingerprint != said.fingerprint:
            raise UsageError(f"{said.model} is not the model that {self.folder} was made with: make the index again")
        return found

    def _inputs(self, segment: Segment) -> list[KernelVectors]:
        """Return the inputs of the method with the features of a segment, and without queries."""
        is_first = segment == self.description.segments[0]
        task = self._stored if is_first else self._with_features(segment)
        return list(self.source.inputs(without_queries(task, self.source)))
