"""The explorer's web application: a page, the images it shows, and an API for their scores.

Ids in a request are looked up among the known ones and numbers are checked; no part of a request becomes a path.
"""

import asyncio
import re
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from dtrak import report
from dtrak.errors import DtrakError, UsageError, check_known
from dtrak.explorer import responses
from dtrak.explorer.catalog import Catalog, Entry
from dtrak.explorer.exploration import Exploration, NotReadyError
from dtrak.explorer.guard import Guard, Limit
from dtrak.explorer.uploads import Forms, RefusedError, decode
from dtrak.explorer.work_queue import FullError, WorkItem
from dtrak.figures.thumbnails import thumbnail
from dtrak.kernels.damping import Damping
from dtrak.methods import Method

FOLDER, THEME = Path(__file__).parent, Path(report.__file__).parent / "theme.css"
ASSETS = {
    "/": (FOLDER / "page.html", "text/html"),
    "/theme.css": (THEME, "text/css"),
    "/icon.svg": (FOLDER / "icon.svg", "image/svg+xml"),
    **{f"/{path.name}": (path, "text/css") for path in FOLDER.glob("*.css")},
    **{f"/{path.name}": (path, "text/javascript") for path in FOLDER.glob("*.js")},
}
SIDES = {"small": 192, "large": 640}  # the greatest number of pixels a side
CARDS = {"png": "image/png", "pdf": "application/pdf"}
MAX_THUMBNAILS = 2048  # kept in memory
PAGE_SIZE, MAX_SHOWN = 66, 500  # images in one response, by default and at most
MAX_UPLOADS = 4  # pictures that wait to be decoded
RETRY_SECONDS = "5"
MAX_PROMPT = 1000  # characters
MAX_SEED = 2**63 - 1
MAX_QUOTED = 40  # characters of a request that an error message repeats

Choice = TypeVar("Choice")


class Explorer:
    """Handles the requests about one run; long computations are done by the run's work queue."""

    def __init__(self, exploration: Exploration) -> None:
        self.exploration = exploration
        self.version = token_hex(4)  # a part of images' addresses, so that browsers do not keep those of another start
        self.forms = Forms()
        self.uploads = asyncio.Semaphore(MAX_UPLOADS)
        self.decoding = asyncio.Lock()  # one at a time, as a large picture takes much memory
        self.thumbnail = lru_cache(MAX_THUMBNAILS)(self._thumbnail)

    def app(self, hosts: list[str]) -> ASGIApp:
        """Return the application, which answers requests to these hosts."""
        routes = [
            *(Route(path, partial(asset, *file)) for path, file in ASSETS.items()),
            Route("/images/{side}/{where}/{number}", self.image),
            Route("/api/run", self.run),
            Route("/api/damping", self.damping),
            Route("/api/train", self.train),
            Route("/api/queries", self.queries),
            Route("/api/answer", self.picture_scores),
            Route("/api/transpose", self.training_image_scores),
            Route("/api/scores.csv", self.csv),
            Route("/api/card.{ending}", self.card),
            Route("/api/questions/{id}", self.progress),
            Route("/api/ask", self.add_picture, methods=["POST"]),
        ]
        handlers: Mapping[Any, Any] = {
            HTTPException: lambda _, error: refusal(error.status_code, error.detail, error.headers),
            RefusedError: lambda _, error: refusal(error.status, str(error)),
            UsageError: lambda _, error: refusal(422, str(error)),
            DtrakError: lambda _, error: refusal(500, str(error)),
            TimeoutError: lambda _, error: refusal(408, "the form did not arrive in time", {"Connection": "close"}),
            ClientDisconnect: lambda _, error: refusal(400, "the form is incomplete"),
            FullError: lambda _, error: full(),
            NotReadyError: lambda _, error: self._accepted(error.item),
            Exception: lambda _, error: refusal(500, f"{type(error).__name__}: {error}"),
        }
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False  # a redirect would repeat an address that the client chose
        return Guard(Limit(app, full), hosts)

    def run(self, request: Request) -> Response:
        """Describe the run."""
        return JSONResponse(responses.described_run(self.exploration) | {"version": self.version})

    def image(self, request: Request) -> Response:
        """Send a thumbnail of an image."""
        where = request.path_params["where"]
        catalog = self.exploration.train if where == "train" else _look_up("set", where, self.exploration.sets)
        entry = _by_number(catalog, request.path_params["number"])
        side = _look_up("size", request.path_params["side"], SIDES)
        try:
            content, kind = self.thumbnail(entry, side)
        except DtrakError as error:  # its file was removed or replaced
            raise HTTPException(404, str(error)) from None
        return Response(content, media_type=kind, headers={"Cache-Control": "private, max-age=86400, immutable"})

    def _thumbnail(self, entry: Entry, side: int) -> tuple[bytes, str]:
        return thumbnail(entry.images, entry.position, side)

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
            return JSONResponse(_page(entries, request))
        values = responses.influences(self.exploration, *self._scoring(request), sort)
        entries.sort(key=lambda entry: -values[entry.position])
        page = _page(entries, request)
        for item in page["items"]:
            item["score"] = float(values[item["number"]])
        return JSONResponse(page)

    def queries(self, request: Request) -> Response:
        """List the pictures of a set: one page of those that a search finds."""
        catalog, query = self.exploration.sets[self._set(request)], request.query_params
        entries, sort = catalog.search(query.get("search", "")), query.get("sort", "oldest")
        check_known("order", sort, ["oldest", "newest"])
        return JSONResponse(_page(entries if sort == "oldest" else entries[::-1], request))

    def picture_scores(self, request: Request) -> Response:
        """Send the scores of a picture."""
        set_name, method, damping = self._scoring(request)
        entry = _by_id(self.exploration.sets[set_name], request.query_params.get("query", ""))
        count = _whole(request, "count", 10, MAX_SHOWN)
        return JSONResponse(responses.picture_scores(self.exploration, set_name, entry, method, damping, count))

    def training_image_scores(self, request: Request) -> Response:
        """Send the scores of a training image."""
        set_name, method, damping = self._scoring(request)
        entry = _by_id(self.exploration.train, request.query_params.get("train", ""))
        count = _whole(request, "count", 10, MAX_SHOWN)
        return JSONResponse(responses.training_image_scores(self.exploration, set_name, entry, method, damping, count))

    def csv(self, request: Request) -> Response:
        """Send the scores of one picture, or of all pictures of a set, as CSV."""
        set_name, method, damping = self._scoring(request)
        catalog, id_ = self.exploration.sets[set_name], request.query_params.get("query")
        if id_ is None:
            scored = self.exploration.scored(set_name, method)
            pictures = [(entry, one) for part, one in scored for entry in part.entries]
        else:
            entry = _by_id(catalog, id_)
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
        kind = _look_up("kind of card", ending, CARDS)
        set_name, method, damping = self._scoring(request)
        entry = _by_id(self.exploration.sets[set_name], request.query_params.get("query", ""))
        content = responses.card(self.exploration, set_name, entry, method, damping, ending)
        name = re.sub(r"[^A-Za-z0-9]+", "-", f"{entry.id}-{method.name}")
        headers = {"Content-Disposition": f'attachment; filename="{name}-card.{ending}"'}
        return Response(content, media_type=kind, headers=headers)

    def progress(self, request: Request) -> Response:
        """Send the progress of work that another request has started."""
        id_ = request.path_params["id"]
        item = self.exploration.queue.by_id.get(id_)
        if item is None:
            raise HTTPException(404, f"there is no question {id_!r}")
        return JSONResponse({"question": self.exploration.queue.described(item)})

    async def add_picture(self, request: Request) -> Response:
        """Add a new picture, from a form with a picture or with a seed to draw it from."""
        form = await self.forms.read(request.headers, request.stream())
        picture, seed = form.get("picture"), form.get("seed")
        prompt = self._prompt(form.get("prompt"))
        if isinstance(picture, UploadFile) and seed is None:
            if self.uploads.locked():
                raise FullError
            async with self.uploads, self.decoding:
                pixels = await run_in_threadpool(decode, await picture.read(), self.exploration.run)
            return self._accepted(self.exploration.add_picture(pixels, prompt))
        if picture is None and isinstance(seed, str):
            return self._accepted(self.exploration.add_seed(_number("seed", seed, 0, MAX_SEED), prompt))
        raise RefusedError(422, "send a picture, or a seed, and not both")

    def _prompt(self, sent: UploadFile | str | None) -> str | None:
        """Return the prompt of a form, if it has one."""
        if sent is None:
            return None
        if not self.exploration.takes_prompts:
            raise RefusedError(422, "this run's model takes no prompts")
        if not isinstance(sent, str) or len(sent) > MAX_PROMPT or not _is_text(sent):
            raise RefusedError(422, f"a prompt is a text of up to {MAX_PROMPT:,} characters")
        return sent

    def _accepted(self, item: WorkItem) -> Response:
        """Tell the client to wait for queued work."""
        return JSONResponse({"question": self.exploration.queue.described(item)}, 202)

    def _scoring(self, request: Request) -> tuple[str, Method, Damping]:
        """Return the set, the method and the damping of a request."""
        methods, query = self.exploration.methods, request.query_params
        method = _look_up("method", query.get("method", next(iter(methods))), methods)
        return self._set(request), method, Damping.parse(query.get("damping", self.exploration.damping))

    def _set(self, request: Request) -> str:
        """Return the name of the set of a request."""
        name = request.query_params.get("set", next(iter(self.exploration.sets)))
        _look_up("set", name, self.exploration.sets)
        return name


def asset(path: Path, kind: str, request: Request) -> Response:
    """Send a file of the page."""
    return Response(path.read_bytes(), media_type=kind, headers={"Cache-Control": "no-cache"})


def refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Send an error as JSON."""
    return JSONResponse({"error": message}, status, headers)


def full() -> Response:
    """Tell the client to try again later."""
    return refusal(503, "too many requests are waiting: try again in a moment", {"Retry-After": RETRY_SECONDS})


def _page(entries: list[Entry], request: Request) -> dict[str, Any]:
    page, size = _whole(request, "page", 0), _whole(request, "size", PAGE_SIZE, MAX_SHOWN, least=1)
    return responses.listed(entries, page, size)


def _look_up(kind: str, name: str, known: Mapping[str, Choice]) -> Choice:
    """Return what has this name; refuse an unknown name."""
    check_known(kind, name, list(known))
    return known[name]


def _by_id(catalog: Catalog, id_: str) -> Entry:
    entry = catalog.by_id.get(id_)
    if entry is None:
        raise HTTPException(404, f"there is no {id_!r} among the {len(catalog):,} {catalog.title}")
    return entry


def _by_number(catalog: Catalog, text: str) -> Entry:
    entry = catalog.by_number.get(int(text)) if _is_number(text) else None
    if entry is None:
        raise HTTPException(404, f"there is no image {text[:MAX_QUOTED]} among the {len(catalog):,} {catalog.title}")
    return entry


def _whole(request: Request, name: str, default: int, most: int = 10**9, least: int = 0) -> int:
    """Return a whole number of a request; refuse one that is not between `least` and `most`."""
    return _number(name, request.query_params.get(name, str(default)), least, most)


def _number(name: str, text: str, least: int, most: int) -> int:
    if not (_is_number(text) and least <= int(text) <= most):
        raise UsageError(f"{name} {text[:MAX_QUOTED]!r}: give a whole number from {least} to {most}")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20


def _is_text(sent: str) -> bool:
    """Tell whether a text can be stored: a form in a strange encoding may have halves of characters."""
    return re.search("[\ud800-\udfff]", sent) is None
