"""Open an index for the explorer: pictures are added to it, and the images that made each are found."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.attribution.index import Index
from dtrak.attribution.question import FROM_PYTHON
from dtrak.attribution.scores import Scores
from dtrak.errors import UsageError
from dtrak.explorer.catalog import Catalog, Entry, as_json
from dtrak.explorer.exploration import ADDED
from dtrak.explorer.kept_pictures import features_of, keep, kept, name_of, remove_oldest
from dtrak.explorer.uploads import Fit, RefusedError
from dtrak.explorer.work_queue import NotReadyError, WorkItem, WorkQueue
from dtrak.images.images import Images, images_by_id, load_images
from dtrak.models import DiffusionModel

FOUND = 100  # images that are found for a picture


class IndexedImages(Mapping[int, Entry]):
    """The training images of an index by their places. There may be millions, so each is described when it is shown."""

    title = "training images"

    def __init__(self, index: Index) -> None:
        self.index = index
        self._starts = np.cumsum([0, *(one.rows for one in index.description.segments)])
        self.parts: list[Images] = []  # of each segment
        for segment, start in zip(index.description.segments, self._starts, strict=False):
            given = segment.images
            ids = index.ids[start : start + segment.rows]
            if given["source"].startswith(FROM_PYTHON):
                raise UsageError(f"{index.folder} does not say where its images are: make it again with `dtrak index`")
            try:
                self.parts.append(images_by_id(given["source"], ids, segment.shape, given["crop"], given["size"]))
            except UsageError as error:
                raise UsageError(f"the images of {index.folder} are not where they were: {error}") from None

    @property
    def by_number(self) -> Mapping[int, Entry]:
        return self

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[int]:
        return iter(range(int(self._starts[-1])))

    def __getitem__(self, place: int) -> Entry:
        if not 0 <= place < self._starts[-1]:
            raise KeyError(place)
        part = int(np.searchsorted(self._starts, place, side="right")) - 1
        columns = {name: as_json(column[place].item()) for name, column in self.index.columns.items()}
        position, id_ = place - int(self._starts[part]), str(self.index.ids[place])
        return Entry(place, self.parts[part], position, id_, columns, text="")


@dataclass(frozen=True, eq=False)
class IndexHome:
    """The folder of an index, which keeps the pictures that users add."""

    folder: Path
    train_images: Images

    def query_images(self, source: str) -> Images:
        return load_images(source, channels=self.train_images.shape[0])


@dataclass(frozen=True, eq=False)
class IndexExploration:
    """One index and its model. Everything that needs the model is done by the `queue`."""

    index: Index
    model: DiffusionModel
    train: IndexedImages
    sets: dict[str, Catalog]
    queue: WorkQueue
    home: IndexHome
    _found: dict[str, Scores] = field(default_factory=dict)  # by the fingerprint of the picture

    @property
    def fit(self) -> Fit:
        first = self.train.parts[0]
        return Fit(first.shape, *first.transformation)

    @property
    def takes_prompts(self) -> bool:
        return self.model.conditions is not None

    def prepare_first(self) -> None:
        """Open the files of the index, so that the first question takes as long as others."""
        self.queue.add("open", "the index", self.index.prepare, is_bounded=False)

    def found(self, entry: Entry) -> Scores:
        """Return the strongest images of a picture; if they are not searched yet, queue that and raise an error."""
        known = self._found.get(entry.images.fingerprint)
        if known is None:
            work = self.queue.add(
                f"search {entry.id}", "your picture", lambda: self._search(entry.images), is_bounded=False
            )
            raise NotReadyError(work)
        return known

    def add_picture(self, pixels: NDArray[np.uint8], prompt: str | None = None) -> WorkItem:
        """Queue the work to keep a new picture [H, W, C], and to find the images that made it."""
        key = f"picture {name_of(pixels, prompt)}"
        return self.queue.add(key, "your picture", lambda: self._add(keep(self.home, pixels, prompt=prompt)))

    def add_seed(self, seed: int, prompt: str | None = None) -> WorkItem:
        raise RefusedError(422, "an index takes pictures, and draws none: send a picture")

    def _search(self, picture: Images) -> None:
        folder = features_of(self.home, str(picture.ids[0]))
        self._found[picture.fingerprint] = self.index.search(picture, FOUND, folder=folder)

    def _add(self, picture: Images) -> str:
        """Search for a new picture and return its id; remove the oldest pictures if there are too many."""
        self._search(picture)
        id_, added = str(picture.ids[0]), self.sets[ADDED]
        added.add(picture)
        left = remove_oldest(self.home, but=id_)
        for entry in [one for one in added.entries if one.id not in left]:
            added.remove(entry)
            self._found.pop(entry.images.fingerprint, None)
            self.queue.forget(entry.id)
        return id_

    def answer(self, entry: Entry, count: int) -> list[dict[str, Any]]:
        """Describe the strongest images of a picture, the strongest first, with their scores."""
        (matches,) = self.found(entry).top(count)
        shown = [(self.train[one.position], one.score) for one in matches if one.score > 0]
        return [{"id": one.id, "number": one.number, "columns": one.columns, "score": score} for one, score in shown]


def explore_index(index: Index, device: str) -> IndexExploration:
    """Open an index; refuse one whose model or images are not where they were."""
    train = IndexedImages(index)
    home = IndexHome(index.folder, train.parts[0])
    sets = {ADDED: Catalog("pictures added here", *kept(home))}
    index.opened.device = device
    return IndexExploration(index, index.opened.model(), train, sets, WorkQueue(), home)
