"""The explorer of an index: an API that finds the training images which made a picture."""

import re
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dtrak.explorer.catalog import Entry
from dtrak.explorer.indexed import FOUND, IndexExploration
from dtrak.explorer.kept_pictures import MAX_BYTES, MAX_PICTURES
from dtrak.explorer.lists import described, neighbours
from dtrak.explorer.pages import Pages, by_id, by_number, whole
from dtrak.figures.html_pictures import SMALL


class IndexExplorer(Pages):
    """Handles the requests about one index."""

    def __init__(self, exploration: IndexExploration) -> None:
        super().__init__(exploration)
        self.exploration = exploration

    def answers(self) -> dict[str, Callable[[Request], Response]]:
        return {
            "/api/run": self.about,
            "/api/answer": self.strongest,
            "/api/scores.csv": self.csv,
            "/api/transpose": self.one,
        }

    def about(self, request: Request) -> Response:
        """Describe the index, with the names that a run has."""
        index, (_, height, width) = self.exploration.index, self.exploration.fit.shape
        method = index.method
        sets = self.exploration.sets.items()
        return JSONResponse(
            {
                "index": True,
                "name": index.folder.resolve().name,
                "summary": f"An index of {len(index):,} training images, with scores of {method.name}.",
                "train": {"count": len(index), "labels": []},
                "sets": [{"name": name, "title": one.title, "count": len(one)} for name, one in sets],
                "methods": [{"name": method.name, "summary": method.summary, "damped": False, "self_influence": False}],
                "damping": "",
                "trust": {},
                "kept": {"pictures": MAX_PICTURES, "bytes": MAX_BYTES},
                "prompts": self.exploration.takes_prompts,
                "width": width,
                "height": height,
                "pixelated": max(height, width) <= SMALL,
                "version": self.version,
            }
        )

    def strongest(self, request: Request) -> Response:
        """Send the strongest images of a picture, with their exact scores."""
        catalog = self.exploration.sets[self.set_of(request)]
        entry = by_id(catalog, request.query_params.get("query", ""))
        found = self.exploration.answer(entry, FOUND)
        shown = found[: whole(request, "count", 10, FOUND)]
        return JSONResponse(
            {
                "query": described(entry),
                **neighbours(catalog, entry),
                "proponents": shown,
                "opponents": [],
                "positive": len(found),
                "negative": 0,
                "credit": {},
                "prompt": None,
            }
        )

    def one(self, request: Request) -> Response:
        """Describe a training image, which a request names by its place. An index knows no pictures of an image."""
        entry = by_number(self.exploration.train, request.query_params.get("train", ""))
        counts = {"positive": 0, "negative": 0, "previous": None, "next": None}
        none: list[Entry] = []
        return JSONResponse({"train": described(entry), "proponents": none, "opponents": none, **counts})

    def csv(self, request: Request) -> Response:
        """Send the strongest images of a picture as CSV."""
        entry = by_id(self.exploration.sets[self.set_of(request)], request.query_params.get("query", ""))
        content = self.exploration.found(entry).csv()
        name = re.sub(r"[^A-Za-z0-9.]+", "-", entry.id)
        headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
        return Response(content, media_type="text/csv", headers=headers)
