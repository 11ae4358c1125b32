"""What the explorer of a run and that of an index share: the page, images, pictures that users add, and refusals.

Ids in a request are looked up among the known ones and numbers are checked; no part of a request becomes a path.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from dtrak import report
from dtrak.errors import DtrakError, UsageError, check_known
from dtrak.explorer import lists
from dtrak.explorer.catalog import Catalog, Entry
from dtrak.explorer.guard import Guard, Limit
from dtrak.explorer.uploads import Fit, Forms, RefusedError, decode
from dtrak.explorer.work_queue import FullError, NotReadyError, WorkItem, WorkQueue
from dtrak.figures.html_pictures import thumbnail

FOLDER, THEME = Path(__file__).parent, Path(report.__file__).parent / "theme.css"
ASSETS = {
    "/": (FOLDER / "page.html", "text/html"),
    "/theme.css": (THEME, "text/css"),
    "/icon.svg": (FOLDER / "icon.svg", "image/svg+xml"),
    **{f"/{path.name}": (path, "text/css") for path in FOLDER.glob("*.css")},
    **{f"/{path.name}": (path, "text/javascript") for path in FOLDER.glob("*.js")},
}
SIDES = {"small": 192, "large": 640}  # the greatest number of pixels a side
MAX_THUMBNAILS = 2048  # kept in memory
PAGE_SIZE, MAX_SHOWN = 66, 500  # images in one response, by default and at most
MAX_UPLOADS = 4  # pictures that wait to be decoded
RETRY_SECONDS = "5"
MAX_PROMPT = 1000  # characters
MAX_SEED = 2**63 - 1
MAX_QUOTED = 40  # characters of a request that an error message repeats

Choice = TypeVar("Choice")


class Known(Protocol):
    """Images that requests name by their numbers."""

    title: str

    def __len__(self) -> int: ...
    @property
    def by_number(self) -> Mapping[int, Entry]: ...


class Explored(Protocol):
    """What is explored: a run or an index. Long computations are done by its work queue."""

    @property
    def train(self) -> Known: ...
    @property
    def sets(self) -> Mapping[str, Catalog]: ...
    @property
    def queue(self) -> WorkQueue: ...
    @property
    def takes_prompts(self) -> bool: ...
    @property
    def fit(self) -> Fit: ...
    def prepare_first(self) -> None: ...
    def add_picture(self, pixels: NDArray[np.uint8], prompt: str | None = None) -> WorkItem: ...
    def add_seed(self, seed: int, prompt: str | None = None) -> WorkItem: ...


class Pages:
    """Handles the requests about images and added pictures."""

    def __init__(self, explored: Explored) -> None:
        self.explored = explored
        self.version = token_hex(4)  # a part of images' addresses, so that browsers do not keep those of another start
        self.forms = Forms()
        self.uploads = asyncio.Semaphore(MAX_UPLOADS)
        self.decoding = asyncio.Lock()  # one at a time, as a large picture takes much memory
        self.thumbnail = lru_cache(MAX_THUMBNAILS)(self._thumbnail)

    def answers(self) -> dict[str, Callable[[Request], Response]]:
        """Return what answers the requests of one kind of explorer, by their paths."""
        raise NotImplementedError

    def app(self, hosts: list[str]) -> ASGIApp:
        """Return the application, which answers requests to these hosts."""
        routes = [
            *(Route(path, partial(asset, *file)) for path, file in ASSETS.items()),
            *(Route(path, answer) for path, answer in self.answers().items()),
            Route("/images/{side}/{where}/{number}", self.image),
            Route("/api/queries", self.queries),
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

    def image(self, request: Request) -> Response:
        """Send a thumbnail of an image."""
        where = request.path_params["where"]
        catalog = self.explored.train if where == "train" else look_up("set", where, self.explored.sets)
        entry = by_number(catalog, request.path_params["number"])
        side = look_up("size", request.path_params["side"], SIDES)
        try:
            content, kind = self.thumbnail(entry, side)
        except DtrakError as error:  # its file was removed or replaced
            raise HTTPException(404, str(error)) from None
        return Response(content, media_type=kind, headers={"Cache-Control": "private, max-age=86400, immutable"})

    def _thumbnail(self, entry: Entry, side: int) -> tuple[bytes, str]:
        return thumbnail(entry.images.pixels([entry.position])[0], side)

    def queries(self, request: Request) -> Response:
        """List the pictures of a set: one page of those that a search finds."""
        catalog, query = self.explored.sets[self.set_of(request)], request.query_params
        entries, sort = catalog.search(query.get("search", "")), query.get("sort", "oldest")
        check_known("order", sort, ["oldest", "newest"])
        return JSONResponse(page_of(entries if sort == "oldest" else entries[::-1], request))

    def progress(self, request: Request) -> Response:
        """Send the progress of work that another request has started."""
        id_ = request.path_params["id"]
        item = self.explored.queue.by_id.get(id_)
        if item is None:
            raise HTTPException(404, f"there is no question {id_!r}")
        return JSONResponse({"question": self.explored.queue.described(item)})

    async def add_picture(self, request: Request) -> Response:
        """Add a new picture, from a form with a picture or with a seed to draw it from."""
        form = await self.forms.read(request.headers, request.stream())
        picture, seed = form.get("picture"), form.get("seed")
        prompt = self._prompt(form.get("prompt"))
        if isinstance(picture, UploadFile) and seed is None:
            if self.uploads.locked():
                raise FullError
            async with self.uploads, self.decoding:
                pixels = await run_in_threadpool(decode, await picture.read(), self.explored.fit)
            return self._accepted(self.explored.add_picture(pixels, prompt))
        if picture is None and isinstance(seed, str):
            return self._accepted(self.explored.add_seed(_number("seed", seed, 0, MAX_SEED), prompt))
        raise RefusedError(422, "send a picture, or a seed, and not both")

    def _prompt(self, sent: UploadFile | str | None) -> str | None:
        """Return the prompt of a form, if it has one."""
        if sent is None:
            return None
        if not self.explored.takes_prompts:
            raise RefusedError(422, "this run's model takes no prompts")
        if not isinstance(sent, str) or len(sent) > MAX_PROMPT or not _is_text(sent):
            raise RefusedError(422, f"a prompt is a text of up to {MAX_PROMPT:,} characters")
        return sent

    def _accepted(self, item: WorkItem) -> Response:
        """Tell the client to wait for queued work."""
        return JSONResponse({"question": self.explored.queue.described(item)}, 202)

    def set_of(self, request: Request) -> str:
        """Return the name of the set of a request."""
        name = request.query_params.get("set", next(iter(self.explored.sets)))
        look_up("set", name, self.explored.sets)
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


def page_of(entries: list[Entry], request: Request) -> dict[str, Any]:
    page, size = whole(request, "page", 0), whole(request, "size", PAGE_SIZE, MAX_SHOWN, least=1)
    return lists.listed(entries, page, size)


def look_up(kind: str, name: str, known: Mapping[str, Choice]) -> Choice:
    """Return what has this name; refuse an unknown name."""
    check_known(kind, name, list(known))
    return known[name]


def by_id(catalog: Catalog, id_: str) -> Entry:
    entry = catalog.by_id.get(id_)
    if entry is None:
        raise HTTPException(404, f"there is no {id_!r} among the {len(catalog):,} {catalog.title}")
    return entry


def by_number(catalog: Known, text: str) -> Entry:
    entry = catalog.by_number.get(int(text)) if _is_number(text) else None
    if entry is None:
        raise HTTPException(404, f"there is no image {text[:MAX_QUOTED]} among the {len(catalog):,} {catalog.title}")
    return entry


def whole(request: Request, name: str, default: int, most: int = 10**9, least: int = 0) -> int:
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
