"""The explorer's web server: the socket that it listens on, its start, and its end."""

import ipaddress
import os
import socket
import threading
import webbrowser
from contextlib import suppress

import uvicorn

from dtrak.errors import DtrakError, UsageError
from dtrak.explorer.pages import Pages
from dtrak.tables import output

PORT = 8321  # the first port that is tried, unless the user gives one
TRIED = 20  # how many ports are tried
MAX_CONNECTIONS = 512  # at a time; further ones are told to try again
SECONDS_TO_END = 3


def listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens on the given port, or on the first free one from `PORT` on."""
    try:
        addresses = socket.getaddrinfo(host, port or PORT, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        family, kind, protocol, _, address = addresses[0]
    except (OSError, UnicodeError) as error:  # a UnicodeError if a part of the name is empty or too long
        reason = getattr(error, "strerror", None) or "it is not the name of a machine"
        raise UsageError(f"host {host!r}: {reason}; give an address of this machine such as 127.0.0.1") from None
    for tried in range(PORT, PORT + TRIED) if port is None else [port]:
        listening = socket.socket(family, kind, protocol)  # asyncio sets TCP_NODELAY only if the protocol is given
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address[0], tried))
            listening.listen()
            return listening
        except OverflowError:
            raise UsageError(f"port {tried}: it must be at most 65535") from None
        except OSError as error:
            listening.close()
            last = f"cannot listen on {host}, port {tried}: {error.strerror}"
    raise DtrakError(last if port is not None else f"{last}, nor on the {TRIED - 1} ports before it; give a --port")


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(pages: Pages, host: str, listening: socket.socket, open_browser: bool) -> None:
    """Serve requests until Ctrl-C."""
    name, local = f"[{host}]" if ":" in host else host, is_loopback(host)
    address = f"http://{name}:{listening.getsockname()[1]}/"
    pages.prepare_first()
    output.print(f"The explorer: {address} (Ctrl-C ends it)", markup=False)
    if not local:
        output.print(f"Everyone who can reach {host} can see these images and add pictures.", markup=False)
    if open_browser:
        threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()
    app = pages.app(["127.0.0.1", "localhost", "[::1]", name] if local else ["*"])
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=SECONDS_TO_END,
        log_level="error",
        access_log=False,
        server_header=False,
        lifespan="off",
    )
    try:
        with suppress(KeyboardInterrupt):  # users end the server by Ctrl-C
            uvicorn.Server(config).run(sockets=[listening])
    finally:
        if not pages.queue.close():
            os._exit(0)  # ends the process although a long computation is running
