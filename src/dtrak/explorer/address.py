"""Open the socket that the explorer listens on."""

import ipaddress
import socket

from dtrak.errors import DtrakError, UsageError

PORT = 8321  # the first port that is tried, unless the user gives one
TRIED = 20  # how many ports are tried
BACKLOG = 128  # connections that may wait to be accepted


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
            listening.listen(BACKLOG)
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
