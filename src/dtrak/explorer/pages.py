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

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from dtrak import report
from dtrak.errors import DtrakError, UsageError, check_known
from dtrak.explorer.catalog import Catalog, Entry
from dtrak.explorer.guard import Fit, Guard, RefusedError, decode, read_form
from dtrak.explorer.kept_pictures import MAX_BYTES, MAX_PICTURES, Home, keep, kept, name_of, remove_oldest
from dtrak.explorer.work_queue import FullError, NotReadyError, Work, WorkItem, WorkQueue
from dtrak.figures.html_pictures import SMALL, thumbnail
from dtrak.images.images import Images
from dtrak.models import DiffusionModel

FOLDER, THEME = Path(__file__).parent, Path(report.__file__).parent / "theme.css"
ASSETS = {
    "/": (FOLDER / "page.html", "text/html"),
    "/theme.css": (THEME, "text/css"),
    "/icon.svg": (FOLDER / "icon.svg", "image/svg+xml"),
    **{f"/{path.name}": (path, "text/css") for path in FOLDER.glob("*.css")},
    **{f"/{path.name}": (path, "text/javascript") for path in FOLDER.glob("*.js")},
}
ADDED = "asked"  # the name of the set of pictures that users of the page add
SIDES = {"small": 192, "large": 640}  # the greatest number of pixels a side
MAX_THUMBNAILS = 2048  # kept in memory
PAGE_SIZE, MAX_SHOWN = 66, 500  # images in one response, by default and at most
MAX_FORMS = 4  # that arrive at a time, each with a picture in memory
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


class Pages:
    """Handles the requests about images and added pictures. Long work is done by its queue."""

    answers: dict[str, Callable[[Request], Response]]  # what one kind of explorer adds, by paths

    def __init__(self, home: Home, model: DiffusionModel, train: Known, sets: Mapping[str, Catalog], fit: Fit) -> None:
        self.home, self.model, self.train, self.fit = home, model, train, fit
        self.sets = {**sets, ADDED: Catalog("pictures added here", *kept(home))}
        self.queue = WorkQueue()
        self.version = token_hex(4)  # a part of images' addresses, so that browsers do not keep those of another start
        self.forms = asyncio.Semaphore(MAX_FORMS)
        self.decoding = asyncio.Lock()  # one at a time, as a large picture takes much memory
        self.thumbnail = lru_cache(MAX_THUMBNAILS)(
            lambda entry, side: thumbnail(entry.images.pixels([entry.position])[0], side)
        )

    def prepare_first(self) -> None:
        """Queue the work that the first question would wait for."""
        raise NotImplementedError

    def score_added(self, picture: Images) -> None:
        """Score a picture that was added."""
        raise NotImplementedError

    def forget_added(self, picture: Images) -> None:
        """Forget the scores of a picture that was removed."""
        raise NotImplementedError

    def drawing(self, seed: int, prompt: str | None) -> tuple[str, Work]:
        """Return a key and the work that draws and adds the picture of a seed."""
        raise NotImplementedError

    def app(self, hosts: list[str]) -> ASGIApp:
        """Return the application, which answers requests to these hosts."""
        routes = [
            *(Route(path, partial(_asset, *file)) for path, file in ASSETS.items()),
            *(Route(path, answer) for path, answer in self.answers.items()),
            Route("/images/{side}/{where}/{number}", self.image),
            Route("/api/queries", self.queries),
            Route("/api/questions/{id}", self.progress),
            Route("/api/ask", self.add_picture, methods=["POST"]),
        ]
        busy, retry = "too many requests are waiting: try again in a moment", {"Retry-After": RETRY_SECONDS}
        late, close = "the form did not arrive in time", {"Connection": "close"}
        handlers: Mapping[Any, Any] = {
            HTTPException: lambda _, error: _refusal(error.status_code, error.detail, error.headers),
            RefusedError: lambda _, error: _refusal(error.status, str(error)),
            UsageError: lambda _, error: _refusal(422, str(error)),
            DtrakError: lambda _, error: _refusal(500, str(error)),
            TimeoutError: lambda _, error: _refusal(408, late, close),
            ClientDisconnect: lambda _, error: _refusal(400, "the form is incomplete"),
            FullError: lambda _, error: _refusal(503, busy, retry),
            NotReadyError: lambda _, error: self._accepted(error.item),
            Exception: lambda _, error: _refusal(500, f"{type(error).__name__}: {error}"),
        }
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False  # a redirect would repeat an address that the client chose
        return Guard(TrustedHostMiddleware(app, hosts, www_redirect=False))

    def about(self) -> dict[str, Any]:
        """Describe the sets and limits; `kept` has the number of added pictures and the bytes that all may take."""
        _, height, width = self.fit.shape
        return {
            "sets": [{"name": name, "title": one.title, "count": len(one)} for name, one in self.sets.items()],
            "kept": {"pictures": MAX_PICTURES, "bytes": MAX_BYTES},
            "prompts": self.model.conditions is not None,
            "width": width,
            "height": height,
            "pixelated": max(height, width) <= SMALL,
            "version": self.version,
        }

    def image(self, request: Request) -> Response:
        """Send a thumbnail of an image."""
        where = request.path_params["where"]
        catalog = self.train if where == "train" else look_up("set", where, self.sets)
        entry = by_number(catalog, request.path_params["number"])
        side = look_up("size", request.path_params["side"], SIDES)
        try:
            content, kind = self.thumbnail(entry, side)
        except DtrakError as error:  # its file was removed or replaced
            raise HTTPException(404, str(error)) from None
        return Response(content, media_type=kind, headers={"Cache-Control": "private, max-age=86400, immutable"})

    def queries(self, request: Request) -> Response:
        """List the pictures of a set: one page of those that a search finds."""
        catalog, query = self.sets[self.set_of(request)], request.query_params
        entries, sort = catalog.search(query.get("search", "")), query.get("sort", "oldest")
        check_known("order", sort, ["oldest", "newest"])
        return JSONResponse(page_of(entries if sort == "oldest" else entries[::-1], request))

    def progress(self, request: Request) -> Response:
        """Send the progress of work that another request has started."""
        id_ = request.path_params["id"]
        item = self.queue.by_id.get(id_)
        if item is None:
            raise HTTPException(404, f"there is no question {id_!r}")
        return JSONResponse({"question": self.queue.described(item)})

    async def add_picture(self, request: Request) -> Response:
        """Queue the work to keep and score a new picture, from a form with a picture or with a seed to draw it from."""
        if self.forms.locked():
            raise FullError
        async with self.forms:
            form = await read_form(request)
            picture, seed, prompt = form.get("picture"), form.get("seed"), form.get("prompt")
            if prompt is not None and self.model.conditions is None:
                raise RefusedError(422, "this run's model takes no prompts")
            # a form in a strange encoding may have halves of characters, which cannot be stored
            if prompt is not None and (
                not isinstance(prompt, str) or len(prompt) > MAX_PROMPT or re.search("[\ud800-\udfff]", prompt)
            ):
                raise RefusedError(422, f"a prompt is a text of up to {MAX_PROMPT:,} characters")
            if isinstance(picture, UploadFile) and seed is None:
                async with self.decoding:
                    pixels = await run_in_threadpool(decode, await picture.read(), self.fit)
                key, new = f"picture {name_of(pixels, prompt)}", partial(keep, self.home, pixels, prompt=prompt)
                return self._accepted(self.queue.add(key, "your picture", lambda: self.add(new())))
        if picture is None and isinstance(seed, str):
            number = _number("seed", seed, 0, MAX_SEED)
            key, work = self.drawing(number, prompt)
            return self._accepted(self.queue.add(key, f"the picture of seed {number}", work))
        raise RefusedError(422, "send a picture, or a seed, and not both")

    def add(self, picture: Images) -> str:
        """Score a new picture and return its id; remove the oldest pictures if there are too many."""
        self.score_added(picture)
        id_, added = str(picture.ids[0]), self.sets[ADDED]
        added.add(picture)
        left = remove_oldest(self.home, but=id_)
        for entry in [one for one in added.entries if one.id not in left]:
            added.remove(entry)
            self.forget_added(entry.images)
            self.queue.forget(entry.id)
        return id_

    def _accepted(self, item: WorkItem) -> Response:
        """Tell the client to wait for queued work."""
        return JSONResponse({"question": self.queue.described(item)}, 202)

    def set_of(self, request: Request) -> str:
        """Return the name of the set of a request."""
        name = request.query_params.get("set", next(iter(self.sets)))
        look_up("set", name, self.sets)
        return name


def _asset(path: Path, kind: str, request: Request) -> Response:
    return Response(path.read_bytes(), media_type=kind, headers={"Cache-Control": "no-cache"})


def _refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": message}, status, headers)


def page_of(entries: list[Entry], request: Request) -> dict[str, Any]:
    """Return one page of a list of images; pages are counted from 0, and the last one stands for all after it."""
    page, size = whole(request, "page", 0), whole(request, "size", PAGE_SIZE, MAX_SHOWN, least=1)
    page = min(page, max(0, len(entries) - 1) // size)
    items = [one.described() for one in entries[page * size : (page + 1) * size]]
    return {"total": len(entries), "page": page, "size": size, "items": items}


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
