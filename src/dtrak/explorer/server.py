"""Start the explorer's web server, and end it."""

import os
import socket
import threading
import webbrowser
from contextlib import suppress

import uvicorn

from dtrak.explorer.address import is_loopback
from dtrak.explorer.guard import ANY
from dtrak.explorer.pages import Pages
from dtrak.explorer.protocol import TimeLimitedProtocol
from dtrak.tables import output

SECONDS_TO_END = 3


def serve(pages: Pages, host: str, listening: socket.socket, open_browser: bool) -> None:
    """Serve requests until Ctrl-C."""
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{listening.getsockname()[1]}/"
    local = is_loopback(host)
    pages.explored.prepare_first()
    output.print(f"The explorer: {address} (Ctrl-C ends it)", markup=False)
    if not local:
        output.print(f"Everyone who can reach {host} can see these images and add pictures.", markup=False)
    if open_browser:
        threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()
    hosts = ["127.0.0.1", "localhost", "[::1]", name.lower()] if local else [ANY]
    config = uvicorn.Config(
        pages.app(hosts),
        http=TimeLimitedProtocol,
        ws="none",
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
        if not pages.explored.queue.close():
            os._exit(0)  # ends the process although a long computation is running
