"""Where the explorer listens."""

import ipaddress
import socket

from dtrak.errors import DtrakError, UsageError

PORT, TRIED = 8321, 20  # unless told otherwise, and how many ports are tried
BACKLOG = 128  # connections that may wait to be taken


def listen(host: str, port: int | None) -> socket.socket:
    """A socket on a port of this machine: the one asked for, or the first that is free."""
    try:
        found_at = socket.getaddrinfo(host, port or PORT, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        family, kind, protocol, _, address = found_at[0]
    except (OSError, UnicodeError) as error:  # the latter where a part of the name is empty or too long
        reason = getattr(error, "strerror", None) or "it is not the name of a machine"
        raise UsageError(f"host {host!r}: {reason}; give an address of this machine such as 127.0.0.1") from None
    for tried in range(PORT, PORT + TRIED) if port is None else [port]:
        found = socket.socket(family, kind, protocol)  # asyncio sends at once (TCP_NODELAY) only where TCP is named
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((address[0], tried))
            found.listen(BACKLOG)
            return found
        except OverflowError:
            raise UsageError(f"port {tried}: it must be at most 65535") from None
        except OSError as error:
            found.close()
            last = f"cannot listen on {host}, port {tried}: {error.strerror}"
    raise DtrakError(last if port is not None else f"{last}, nor on the {TRIED - 1} before it; give a --port")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
