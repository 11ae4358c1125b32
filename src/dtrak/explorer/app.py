"""The explorer of a run: an API for the scores of its pictures and of its training images."""

import re
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from dtrak.errors import check_known
from dtrak.explorer import responses
from dtrak.explorer.exploration import Exploration
from dtrak.explorer.pages import MAX_SHOWN, Pages, by_id, look_up, page_of, whole
from dtrak.kernels.damping import Damping
from dtrak.methods import Method

CARDS = {"png": "image/png", "pdf": "application/pdf"}


class Explorer(Pages):
    """Handles the requests about one run."""

    def __init__(self, exploration: Exploration) -> None:
        super().__init__(exploration)
        self.exploration = exploration

    def answers(self) -> dict[str, Callable[[Request], Response]]:
        return {
            "/api/run": self.run,
            "/api/damping": self.damping,
            "/api/train": self.train,
            "/api/answer": self.picture_scores,
            "/api/transpose": self.training_image_scores,
            "/api/scores.csv": self.csv,
            "/api/card.{ending}": self.card,
        }

    def run(self, request: Request) -> Response:
        """Describe the run."""
        return JSONResponse(responses.described_run(self.exploration) | {"version": self.version})

    def damping(self, request: Request) -> Response:
        """Describe a damping for the slider."""
        set_name, method, damping = self._scoring(request)
        self.exploration.scored(set_name, method)
        return JSONResponse(responses.scale(self.exploration, method, damping))

    def train(self, request: Request) -> Response:
        """List training images: one page of those that a search finds."""
        query = request.query_params
        entries = self.exploration.train.search(query.get("search", ""), query.get("label", ""))
        sort = query.get("sort", "id")
        check_known("order", sort, ["id", "self", "total"])
        if sort == "id":
            return JSONResponse(page_of(entries, request))
        values = responses.influences(self.exploration, *self._scoring(request), sort)
        entries.sort(key=lambda entry: -values[entry.position])
        page = page_of(entries, request)
        for item in page["items"]:
            item["score"] = float(values[item["number"]])
        return JSONResponse(page)

    def picture_scores(self, request: Request) -> Response:
        """Send the scores of a picture."""
        set_name, method, damping = self._scoring(request)
        entry = by_id(self.exploration.sets[set_name], request.query_params.get("query", ""))
        count = whole(request, "count", 10, MAX_SHOWN)
        return JSONResponse(responses.picture_scores(self.exploration, set_name, entry, method, damping, count))

    def training_image_scores(self, request: Request) -> Response:
        """Send the scores of a training image."""
        set_name, method, damping = self._scoring(request)
        entry = by_id(self.exploration.train, request.query_params.get("train", ""))
        count = whole(request, "count", 10, MAX_SHOWN)
        return JSONResponse(responses.training_image_scores(self.exploration, set_name, entry, method, damping, count))

    def csv(self, request: Request) -> Response:
        """Send the scores of one picture, or of all pictures of a set, as CSV."""
        set_name, method, damping = self._scoring(request)
        catalog, id_ = self.exploration.sets[set_name], request.query_params.get("query")
        if id_ is None:
            scored = self.exploration.scored(set_name, method)
            pictures = [(entry, one) for part, one in scored for entry in part.entries]
        else:
            entry = by_id(catalog, id_)
            pictures = [(entry, self.exploration.scored_with(set_name, entry, method))]
        for first, one in pictures[:1]:  # an error has to be found before the table begins
            responses.scores_of(self.exploration, one, first, method, damping)
        name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{method.name}-{set_name if id_ is None else id_}")
        return StreamingResponse(
            responses.csv(self.exploration, pictures, method, damping),
            media_type="text/csv",
            headers={"Content-Disposition": f'attachment; filename="{name}.csv"'},
        )

    def card(self, request: Request) -> Response:
        """Send the attribution card of a picture."""
        ending = request.path_params["ending"]
        kind = look_up("kind of card", ending, CARDS)
        set_name, method, damping = self._scoring(request)
        entry = by_id(self.exploration.sets[set_name], request.query_params.get("query", ""))
        content = responses.card(self.exploration, set_name, entry, method, damping, ending)
        name = re.sub(r"[^A-Za-z0-9]+", "-", f"{entry.id}-{method.name}")
        headers = {"Content-Disposition": f'attachment; filename="{name}-card.{ending}"'}
        return Response(content, media_type=kind, headers=headers)

    def _scoring(self, request: Request) -> tuple[str, Method, Damping]:
        """Return the set, the method and the damping of a request."""
        methods, query = self.exploration.methods, request.query_params
        method = look_up("method", query.get("method", next(iter(methods))), methods)
        return self.set_of(request), method, Damping.parse(query.get("damping", self.exploration.damping))
