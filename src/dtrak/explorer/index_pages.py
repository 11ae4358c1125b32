"""The explorer of an index: pictures are added to it, and the training images that made each are found."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dtrak.attribution.index import Index
from dtrak.attribution.question import FROM_PYTHON
from dtrak.attribution.scores import Scores
from dtrak.errors import UsageError
from dtrak.explorer.catalog import Entry, as_json
from dtrak.explorer.guard import Fit, RefusedError
from dtrak.explorer.kept_pictures import features_of
from dtrak.explorer.pages import Pages, by_id, by_number, whole
from dtrak.explorer.work_queue import NotReadyError, Work
from dtrak.images.images import Images, images_by_id, load_images

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
        return Entry(place, self.parts[part], place - int(self._starts[part]), str(self.index.ids[place]), columns)


@dataclass(frozen=True, eq=False)
class IndexHome:
    """The folder of an index, which keeps the pictures that users add."""

    folder: Path
    train_images: Images

    def query_images(self, source: str) -> Images:
        return load_images(source, channels=self.train_images.shape[0])


class IndexPages(Pages):
    """Handles the requests about one index. Everything that needs its model is done by the queue."""

    def __init__(self, index: Index, device: str) -> None:
        """Open an index; refuse one whose model or images are not where they were."""
        self.index, self.images = index, IndexedImages(index)
        self.known: dict[str, Scores] = {}  # by the fingerprint of the picture
        index.opened.device = device
        first = self.images.parts[0]
        home, fit = IndexHome(index.folder, first), Fit(first.shape, *first.transformation)
        super().__init__(home, index.opened.model(), self.images, {}, fit)
        self.answers = {
            "/api/run": self.described,
            "/api/answer": self.strongest,
            "/api/scores.csv": self.csv,
            "/api/transpose": self.one,
        }

    def prepare_first(self) -> None:
        self.queue.add("open", "the index", self.index.prepare, is_bounded=False)

    def score_added(self, picture: Images) -> None:
        folder = features_of(self.home, str(picture.ids[0]))
        self.known[picture.fingerprint] = self.index.search(picture, FOUND, folder=folder)

    def forget_added(self, picture: Images) -> None:
        self.known.pop(picture.fingerprint, None)

    def drawing(self, seed: int, prompt: str | None) -> tuple[str, Work]:
        raise RefusedError(422, "an index takes pictures, and draws none: send a picture")

    def found(self, request: Request) -> tuple[Entry, Scores]:
        """Return the picture of a request and its strongest images; if they are not searched yet, queue that."""
        entry = by_id(self.sets[self.set_of(request)], request.query_params.get("query", ""))
        known = self.known.get(entry.images.fingerprint)
        if known is None:
            key, work = f"search {entry.id}", lambda: self.score_added(entry.images)
            raise NotReadyError(self.queue.add(key, "your picture", work, is_bounded=False))
        return entry, known

    def described(self, request: Request) -> Response:
        """Describe the index, with the names that a run has."""
        index, method = self.index, self.index.method
        return JSONResponse(
            {
                "index": True,
                "name": index.folder.resolve().name,
                "summary": f"An index of {len(index):,} training images, with scores of {method.name}.",
                "train": {"count": len(index), "labels": []},
                "methods": [{"name": method.name, "summary": method.summary, "damped": False, "self_influence": False}],
                "damping": "",
                "trust": {},
                **self.about(),
            }
        )

    def strongest(self, request: Request) -> Response:
        """Send the strongest images of a picture, the strongest first, with their exact scores."""
        entry, scores = self.found(request)
        count, (matches,) = whole(request, "count", 10, FOUND), scores.top(FOUND)
        shown = [self.images[one.position].described() | {"score": one.score} for one in matches if one.score > 0]
        return JSONResponse(
            {
                "query": entry.described(),
                **self.sets[self.set_of(request)].neighbours(entry),
                "proponents": shown[:count],
                "opponents": [],
                "positive": len(shown),
                "negative": 0,
                "credit": {},
                "prompt": None,
            }
        )

    def one(self, request: Request) -> Response:
        """Describe a training image, which a request names by its place. An index knows no pictures of an image."""
        entry = by_number(self.images, request.query_params.get("train", ""))
        nothing = {"proponents": [], "opponents": [], "positive": 0, "negative": 0, "previous": None, "next": None}
        return JSONResponse({"train": entry.described(), **nothing})

    def csv(self, request: Request) -> Response:
        """Send the strongest images of a picture as CSV."""
        entry, scores = self.found(request)
        name = re.sub(r"[^A-Za-z0-9.]+", "-", entry.id)
        headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
        return Response(scores.csv(), media_type="text/csv", headers=headers)
