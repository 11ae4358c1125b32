"""Who may ask, and what a browser may do with the answer.

A page from elsewhere can make a browser send requests to this machine. So the name by which the server is called is
checked, which a foreign name that points here does not pass; what changes something must come from the explorer's own
page; and no page but its own may show, frame or read an answer. Of all these, only so many are worked on at a time.
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


IN_WORK = 64  # requests at a time
LONGEST_ADDRESS = 16 << 10  # characters


class Limit:
    """Around the app: so many requests are worked on at a time, and others get the answer `full`.

    A request counts until its answer begins: how quickly that is read is for the client to choose. A form does not
    count, as it may still be coming; forms have bounds of their own.
    """

    def __init__(self, app: ASGIApp, full: Callable[[], Response]) -> None:
        self.app = app
        self.full = full
        self.in_work: set[object] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await self.app(scope, receive, send)
            return
        if len(self.in_work) >= IN_WORK:
            await self.full()(scope, receive, send)
            return
        request = object()

        async def send_and_leave(message: Message) -> None:
            self.in_work.discard(request)
            await send(message)

        self.in_work.add(request)
        try:
            await self.app(scope, receive, send_and_leave)
        finally:
            self.in_work.discard(request)


class Guard:
    """Around all of it: refuses foreign requests, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, hosts: list[str]) -> None:
        self.app = app
        self.hosts = hosts  # by which the server may be called, without a port; or ANY

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"  # the server is started without anything else

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        reason = self._refusal(scope["method"], scope["path"], Headers(scope=scope))
        if len(scope["raw_path"]) + len(scope["query_string"]) > LONGEST_ADDRESS:
            reason = 414, f"the address is longer than {LONGEST_ADDRESS:,} characters"
        app = self.app if reason is None else JSONResponse({"error": reason[1]}, reason[0])
        await app(scope, receive, send_guarded)

    def _refusal(self, method: str, path: str, headers: Headers) -> tuple[int, str] | None:
        """The status and the reason, if there is one."""
        host = headers.get("host", "")
        if ANY not in self.hosts and without_port(host) not in self.hosts:
            return 400, f"this server is not called {host!r}: open it as {self.hosts[0]}"
        if method in ("GET", "HEAD") and not path.startswith("/api/"):  # whose answers may take work
            return None
        site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
        if site not in ("same-origin", "none") or origin not in (None, f"http://{host}", f"https://{host}"):
            return 403, "only the explorer's own page may ask this"
        return None


def without_port(host: str) -> str:
    """127.0.0.1:8321 → 127.0.0.1, [::1]:8321 → [::1]."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()
