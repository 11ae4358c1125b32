"""The explorer's web server: a page, its images, and questions about them as JSON.

Ids are looked up among those that there are, and numbers are checked; nothing of a request becomes a path.
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
from dtrak.explorer.questions import FullError, Question
from dtrak.explorer.uploads import Forms, RefusedError, decode
from dtrak.kernels.damping import Damping
from dtrak.methods import Method
from dtrak.report.thumbnails import thumbnail

FOLDER, THEME = Path(__file__).parent, Path(report.__file__).parent / "theme.css"
ASSETS = {
    "/": (FOLDER / "page.html", "text/html"),
    "/theme.css": (THEME, "text/css"),
    "/icon.svg": (FOLDER / "icon.svg", "image/svg+xml"),
    **{f"/{path.name}": (path, "text/css") for path in FOLDER.glob("*.css")},
    **{f"/{path.name}": (path, "text/javascript") for path in FOLDER.glob("*.js")},
}
SIDES = {"small": 192, "large": 640}  # pixels, at the most
THUMBNAILS = 2048  # that are kept in memory
PAGE, MOST_SHOWN = 66, 500  # images in one answer, by default and at the most
UPLOADS = 4  # pictures that wait to be decoded, at the most
RETRY_SECONDS = "5"
LONGEST_PROMPT = 1000  # characters
MOST_SEED = 2**63 - 1
SHORT = 40  # characters of what was sent that an error repeats

Choice = TypeVar("Choice")


class Explorer:
    """The answers to requests about one run. What computes for long is not here, but in its questions."""

    def __init__(self, exploration: Exploration) -> None:
        self.exploration = exploration
        self.version = token_hex(4)  # in the addresses of images, which browsers keep
        self.forms = Forms()
        self.uploads = asyncio.Semaphore(UPLOADS)
        self.decoding = asyncio.Lock()  # one at a time: a large picture takes its memory
        self.thumbnail = lru_cache(THUMBNAILS)(self._thumbnail)

    def app(self, hosts: list[str]) -> ASGIApp:
        routes = [
            *(Route(path, partial(asset, *what)) for path, what in ASSETS.items()),
            Route("/images/{side}/{where}/{number}", self.image),
            Route("/api/run", self.run),
            Route("/api/damping", self.damping),
            Route("/api/train", self.train),
            Route("/api/queries", self.queries),
            Route("/api/answer", self.answer),
            Route("/api/transpose", self.transpose),
            Route("/api/scores.csv", self.csv),
            Route("/api/questions/{id}", self.question),
            Route("/api/ask", self.ask, methods=["POST"]),
        ]
        handlers: Mapping[Any, Any] = {
            HTTPException: lambda _, error: refusal(error.status_code, error.detail, error.headers),
            RefusedError: lambda _, error: refusal(error.status, str(error)),
            UsageError: lambda _, error: refusal(422, str(error)),
            DtrakError: lambda _, error: refusal(500, str(error)),
            TimeoutError: lambda _, error: refusal(408, "the form has not come in time", {"Connection": "close"}),
            ClientDisconnect: lambda _, error: refusal(400, "the form has not come to its end"),
            FullError: lambda _, error: full(),
            NotReadyError: lambda _, error: self._told(error.question),
            Exception: lambda _, error: refusal(500, f"{type(error).__name__}: {error}"),
        }
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False  # as the address in a redirection would be one that the client chose
        return Guard(Limit(app, full), hosts)

    def run(self, request: Request) -> Response:
        return JSONResponse(responses.described_run(self.exploration) | {"version": self.version})

    def image(self, request: Request) -> Response:
        where = request.path_params["where"]
        catalog = self.exploration.train if where == "train" else _named("set", where, self.exploration.sets)
        entry = _at(catalog, request.path_params["number"])
        side = _named("size", request.path_params["side"], SIDES)
        try:
            content, kind = self.thumbnail(entry, side)
        except DtrakError as error:  # its file has gone, or another has taken its place
            raise HTTPException(404, str(error)) from None
        return Response(content, media_type=kind, headers={"Cache-Control": "private, max-age=86400, immutable"})

    def _thumbnail(self, entry: Entry, side: int) -> tuple[bytes, str]:
        return thumbnail(entry.images, entry.position, side)

    def damping(self, request: Request) -> Response:
        set_name, method, damping = self._asked(request)
        self.exploration.scored(set_name, method)
        return JSONResponse(responses.scale(self.exploration, method, damping))

    def train(self, request: Request) -> Response:
        query = request.query_params
        entries = self.exploration.train.found(query.get("search", ""), query.get("label", ""))
        sort = query.get("sort", "id")
        check_known("order", sort, ["id", "self", "total"])
        if sort == "id":
            return JSONResponse(_page(entries, request))
        values = responses.influences(self.exploration, *self._asked(request), sort)
        entries.sort(key=lambda entry: -values[entry.position])
        found = _page(entries, request)
        for item in found["items"]:
            item["score"] = float(values[item["number"]])
        return JSONResponse(found)

    def queries(self, request: Request) -> Response:
        catalog, query = self.exploration.sets[self._set(request)], request.query_params
        entries, sort = catalog.found(query.get("search", "")), query.get("sort", "oldest")
        check_known("order", sort, ["oldest", "newest"])
        return JSONResponse(_page(entries if sort == "oldest" else entries[::-1], request))

    def answer(self, request: Request) -> Response:
        set_name, method, damping = self._asked(request)
        entry = _by_id(self.exploration.sets[set_name], request.query_params.get("query", ""))
        count = _whole(request, "count", 10, MOST_SHOWN)
        return JSONResponse(responses.answer(self.exploration, set_name, entry, method, damping, count))

    def transpose(self, request: Request) -> Response:
        set_name, method, damping = self._asked(request)
        entry = _by_id(self.exploration.train, request.query_params.get("train", ""))
        count = _whole(request, "count", 10, MOST_SHOWN)
        return JSONResponse(responses.transposed(self.exploration, set_name, entry, method, damping, count))

    def csv(self, request: Request) -> Response:
        """Of one picture, or of all in its set."""
        set_name, method, damping = self._asked(request)
        catalog, asked = self.exploration.sets[set_name], request.query_params.get("query")
        if asked is None:
            scored = self.exploration.scored(set_name, method)
            pictures = [(entry, one) for part, one in scored for entry in part.entries]
        else:
            entry = _by_id(catalog, asked)
            pictures = [(entry, self.exploration.scored_with(set_name, entry, method))]
        for first, one in pictures[:1]:  # what is wrong has to be said before the table begins
            responses.scores_of(self.exploration, one, first, method, damping)
        name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{method.name}-{set_name if asked is None else asked}")
        return StreamingResponse(
            responses.csv(self.exploration, pictures, method, damping),
            media_type="text/csv",
            headers={"Content-Disposition": f'attachment; filename="{name}.csv"'},
        )

    def question(self, request: Request) -> Response:
        asked = request.path_params["id"]
        question = self.exploration.questions.by_id.get(asked)
        if question is None:
            raise HTTPException(404, f"there is no question {asked!r}")
        return JSONResponse({"question": self.exploration.questions.described(question)})

    async def ask(self, request: Request) -> Response:
        """A form with a picture, or with a seed to draw one from."""
        form = await self.forms.read(request.headers, request.stream())
        picture, seed = form.get("picture"), form.get("seed")
        prompt = self._prompt(form.get("prompt"))
        if isinstance(picture, UploadFile) and seed is None:
            if self.uploads.locked():
                raise FullError
            async with self.uploads, self.decoding:
                pixels = await run_in_threadpool(decode, await picture.read(), self.exploration.run)
            return self._told(self.exploration.ask_picture(pixels, prompt))
        if picture is None and isinstance(seed, str):
            return self._told(self.exploration.ask_seed(_number("seed", seed, 0, MOST_SEED), prompt))
        raise RefusedError(422, "send a picture, or a seed, and not both")

    def _prompt(self, sent: UploadFile | str | None) -> str | None:
        """What the picture was, or is to be, drawn from beside its seed."""
        if sent is None:
            return None
        if not self.exploration.takes_prompts:
            raise RefusedError(422, "this run's model takes no prompts")
        if not isinstance(sent, str) or len(sent) > LONGEST_PROMPT or not _is_text(sent):
            raise RefusedError(422, f"a prompt is a text of up to {LONGEST_PROMPT:,} characters")
        return sent

    def _told(self, question: Question) -> Response:
        return JSONResponse({"question": self.exploration.questions.described(question)}, 202)

    def _asked(self, request: Request) -> tuple[str, Method, Damping]:
        """The set, the method and the damping that a request is about."""
        methods, query = self.exploration.methods, request.query_params
        method = _named("method", query.get("method", next(iter(methods))), methods)
        return self._set(request), method, Damping.parse(query.get("damping", self.exploration.damping))

    def _set(self, request: Request) -> str:
        name = request.query_params.get("set", next(iter(self.exploration.sets)))
        _named("set", name, self.exploration.sets)
        return name


def asset(path: Path, kind: str, request: Request) -> Response:
    return Response(path.read_bytes(), media_type=kind, headers={"Cache-Control": "no-cache"})


def refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": message}, status, headers)


def full() -> Response:
    message = "too many questions wait already: ask again in a moment"
    return refusal(503, message, {"Retry-After": RETRY_SECONDS})


def _page(entries: list[Entry], request: Request) -> dict[str, Any]:
    page, size = _whole(request, "page", 0), _whole(request, "size", PAGE, MOST_SHOWN, least=1)
    return responses.listed(entries, page, size)


def _named(kind: str, name: str, known: Mapping[str, Choice]) -> Choice:
    check_known(kind, name, list(known))
    return known[name]


def _by_id(catalog: Catalog, asked: str) -> Entry:
    entry = catalog.by_id.get(asked)
    if entry is None:
        raise HTTPException(404, f"there is no {asked!r} among the {len(catalog):,} {catalog.title}")
    return entry


def _at(catalog: Catalog, text: str) -> Entry:
    entry = catalog.by_number.get(int(text)) if _is_number(text) else None
    if entry is None:
        raise HTTPException(404, f"there is no image {text[:SHORT]} among the {len(catalog):,} {catalog.title}")
    return entry


def _whole(request: Request, name: str, default: int, most: int = 10**9, least: int = 0) -> int:
    return _number(name, request.query_params.get(name, str(default)), least, most)


def _number(name: str, text: str, least: int, most: int) -> int:
    if not (_is_number(text) and least <= int(text) <= most):
        raise UsageError(f"{name} {text[:SHORT]!r}: give a whole number from {least} to {most}")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20


def _is_text(sent: str) -> bool:
    """Whether it can be written down: a form in a strange encoding may hold halves of characters."""
    return re.search("[\ud800-\udfff]", sent) is None
