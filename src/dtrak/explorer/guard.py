"""Protect the server: refuse requests from other sites' pages, add security headers, and limit concurrent requests.

A page of another site can make a browser send requests to this machine. So the guard refuses a request whose Host
header is not one of the server's names, even if that name points to this machine. It refuses API requests that do not
come from the explorer's page. Its headers forbid other pages to show, frame or read an answer.
"""

from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ANY = "*"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


MAX_REQUESTS = 64  # at a time
MAX_ADDRESS = 16 << 10  # characters


class Limit:
    """Wraps the app and works on at most `MAX_REQUESTS` requests at a time; further requests get the response `full`.

    A request counts until its answer begins, as a slow client may take long to read it. Forms do not count, as they may
    take long to arrive; `uploads.py` limits them.
    """

    def __init__(self, app: ASGIApp, full: Callable[[], Response]) -> None:
        self.app = app
        self.full = full
        self.active: set[object] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await self.app(scope, receive, send)
            return
        if len(self.active) >= MAX_REQUESTS:
            await self.full()(scope, receive, send)
            return
        request = object()

        async def send_and_release(message: Message) -> None:
            self.active.discard(request)
            await send(message)

        self.active.add(request)
        try:
            await self.app(scope, receive, send_and_release)
        finally:
            self.active.discard(request)


class Guard:
    """Wraps the app, refuses requests from other sites, and adds `HEADERS` to every answer."""

    def __init__(self, app: ASGIApp, hosts: list[str]) -> None:
        self.app = app
        self.hosts = hosts  # the names of the server, without a port; or ANY

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"  # the server is started with no other protocol

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(scope["method"], scope["path"], Headers(scope=scope))
        if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_ADDRESS:
            refusal = 414, f"the address is longer than {MAX_ADDRESS:,} characters"
        app = self.app if refusal is None else JSONResponse({"error": refusal[1]}, refusal[0])
        await app(scope, receive, send_guarded)

    def _refusal(self, method: str, path: str, headers: Headers) -> tuple[int, str] | None:
        """Return the status and the reason of a refusal; None if the request is allowed."""
        host = headers.get("host", "")
        if ANY not in self.hosts and without_port(host) not in self.hosts:
            return 400, f"this server is not called {host!r}: open it as {self.hosts[0]}"
        if method in ("GET", "HEAD") and not path.startswith("/api/"):  # only the API can start work
            return None
        site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
        if site not in ("same-origin", "none") or origin not in (None, f"http://{host}", f"https://{host}"):
            return 403, "only the explorer's page may send this request"
        return None


def without_port(host: str) -> str:
    """Remove the port of a Host header: 127.0.0.1:8321 gives 127.0.0.1, and [::1]:8321 gives [::1]."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()
