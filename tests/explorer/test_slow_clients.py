"""Guests who send half a request, do not read, or come in crowds keep no one else from an answer."""

import json
import shutil
import socket
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest

from dtrak.explorer.guard import HEADERS
from dtrak.explorer.protocol import MAX_CONNECTIONS
from dtrak.explorer.uploads import MAX_BYTES, MAX_HELD
from serving import PATIENCE, Server, colourful, served

PATIENT = 2  # seconds that the server waits for someone, in place of five
LIMITS = {f"dtrak.explorer.protocol.SECONDS_TO_{what}": PATIENT for what in ("SEND", "READ")}
SOON = 2.0  # seconds; an answer takes some thousandths, but the machine may be busy
FORM = "POST /api/ask HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=x\r\n"
HALF = {
    "nothing": b"",
    "half a line": b"GET /api/ru",
    "half a head": b"GET /api/run HTTP/1.1\r\nHost: 127.0.0.1\r\nAcc",
    "half a head of a form": f"{FORM}Content-Length: 1000\r\n".encode(),
    "no body": f"{FORM}Content-Length: 1000\r\n\r\n".encode(),
    "half a body": f'{FORM}Content-Length: 1000\r\n\r\n--x\r\nContent-Disposition: form-data; name="se'.encode(),
    "half a chunk": f"{FORM}Transfer-Encoding: chunked\r\n\r\n50\r\n--x".encode(),
    "a body that no one wants": b"GET /api/run HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n",
    "a body that waits for leave": f"{FORM}Content-Length: 1000\r\nExpect: 100-continue\r\n\r\n".encode(),
}


@pytest.fixture(scope="module")
def server(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    run = Path(shutil.copytree(finished_run, tmp_path_factory.mktemp("explorer") / "run"))
    with served(run, "--method", "d-trak", constants=LIMITS) as started:
        for name, one in (("generated", "seed-00001.png"), ("validation", "3")):
            started.get("answer", set=name, query=one)
        yield started


def connected(server: Server, stack: ExitStack, sent: bytes = b"") -> socket.socket:
    port = server.client.base_url.port
    assert port is not None
    one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE))
    one.sendall(sent)
    return one


def seconds_of_an_answer(server: Server) -> float:
    """On a connection of its own, as someone has who comes now."""
    started = time.monotonic()
    connection = HTTPConnection("127.0.0.1", server.client.base_url.port, timeout=PATIENCE)
    connection.request("GET", "/api/answer?query=seed-00001.png&damping=0.3")
    assert connection.getresponse().status == 200
    connection.close()
    return time.monotonic() - started


def rest(one: socket.socket) -> bytes:
    """What the server still sends until it closes the connection."""
    received = b""
    with suppress(ConnectionResetError):
        while part := one.recv(1 << 16):
            received += part
    return received


def half_sent(server: Server) -> None:
    with ExitStack() as stack:
        begun = time.monotonic()
        half = {name: [connected(server, stack, sent) for _ in range(35)] for name, sent in HALF.items()}
        assert sum(map(len, half.values())) > 300
        assert max(seconds_of_an_answer(server) for _ in range(20)) < SOON
        assert server.answered(server.ask(picture=("x.png", colourful(20))))
        answers = {name: {rest(one) for one in sockets} for name, sockets in half.items()}
        assert time.monotonic() - begun < PATIENT + 3 * SOON
    assert answers["nothing"] == {b""}
    for name in ("half a line", "half a head", "half a head of a form", "no body", "half a body", "half a chunk"):
        for answer in answers[name]:
            head, _, content = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 408"), name
            assert f"within {PATIENT} seconds" in json.loads(content)["error"]
            assert all(f"{key}: {value}".encode() in head for key, value in HEADERS.items())
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers["a body that no one wants"])
    assert all(answer.startswith(b"HTTP/1.1 100") for answer in answers["a body that waits for leave"])
    assert "Error" not in server.command.streams.joinpath("err").read_text()


def byte_by_byte(server: Server) -> None:
    """A request that comes so is late all the same."""
    with ExitStack() as stack:
        begun, ends = time.monotonic(), time.monotonic() + 3 * PATIENT
        head, body = connected(server, stack, b"GET /"), connected(server, stack, HALF["half a chunk"])
        with suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() < ends:
                head.sendall(b"x")
                body.sendall(b"x")
                time.sleep(0.5)
        assert time.monotonic() - begun < PATIENT + SOON


def slowly_but_surely(server: Server) -> None:
    """An upload that goes on may take longer than a head."""
    picture = (
        b'--x\r\nContent-Disposition: form-data; name="picture"; filename="x"\r\n\r\n'
        + colourful(400)
        + b"\r\n--x--\r\n"
    )
    part = 64 << 10
    parts = [picture[start : start + part] for start in range(0, len(picture), part)]
    assert len(parts) >= 4
    with ExitStack() as stack:
        one = connected(server, stack, f"{FORM}Connection: close\r\nContent-Length: {len(picture)}\r\n\r\n".encode())
        for sent in parts:
            time.sleep(1.3 * PATIENT / len(parts))
            one.sendall(sent)
        assert rest(one).startswith(b"HTTP/1.1 202")


def not_reading(server: Server) -> None:
    with ExitStack() as stack:
        slow = stack.enter_context(socket.socket())
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that the system takes little for it
        slow.connect(("127.0.0.1", server.client.base_url.port))
        slow.sendall(b"GET /api/scores.csv?set=validation HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")  # 7 MB
        time.sleep(2 * PATIENT)
        assert seconds_of_an_answer(server) < SOON
        assert not rest(slow).endswith(b"0\r\n\r\n")  # the last chunk


LATE = [half_sent, byte_by_byte, slowly_but_surely, not_reading]


@pytest.fixture(scope="module")
def late(server: Server) -> dict[str, Future[None]]:
    """All of them at a time, as each takes some seconds."""
    with ThreadPoolExecutor(len(LATE)) as threads:
        return {guest.__name__: threads.submit(guest, server) for guest in LATE}


@pytest.mark.parametrize("guest", [guest.__name__ for guest in LATE])
def test_who_is_late_blocks_no_one(late: dict[str, Future[None]], guest: str) -> None:
    late[guest].result()


def test_forms_that_fill_the_memory_give_way_to_others(server: Server) -> None:
    large = MAX_BYTES - 1000
    with ExitStack() as stack:
        holding = [connected(server, stack, f"{FORM}Content-Length: {MAX_BYTES}\r\n\r\n".encode()) for _ in range(8)]
        opening = b'--x\r\nContent-Disposition: form-data; name="picture"; filename="x"\r\n\r\n'
        assert len(holding) * large > MAX_HELD
        for one in holding:
            with suppress(ConnectionError):  # it may have been given up by now
                one.sendall(opening + bytes(large))
        assert server.answered(server.ask(picture=("x.png", colourful(21))))
        assert rest(holding[0]).startswith(b"HTTP/1.1 408")


def test_more_connections_than_there_may_be(server: Server) -> None:
    """The oldest of those that ask nothing makes room."""
    with ExitStack() as stack:
        idle = [connected(server, stack, b"GET /") for _ in range(MAX_CONNECTIONS + 60)]
        assert seconds_of_an_answer(server) < PATIENCE
        assert rest(idle[0]) == b""  # where one that is late is told so


def test_answers_on_one_connection_come_at_once(server: Server) -> None:
    connection = HTTPConnection("127.0.0.1", server.client.base_url.port, timeout=PATIENCE)
    medians = []
    for batch in range(10):  # of which one will find the machine idle
        taken = []
        for number in range(30):
            started = time.perf_counter()
            connection.request("GET", f"/api/answer?query=seed-00001.png&damping={1 + batch + number / 100}")
            response = connection.getresponse()
            assert response.status == 200
            response.read()
            taken.append(time.perf_counter() - started)
        medians.append(statistics.median(taken))
    connection.close()
    assert min(medians) <= 0.005  # 44 ms where the system waits for more to send


def test_what_is_no_http_is_refused_with_the_guards_headers(server: Server) -> None:
    for sent in (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"):
        with ExitStack() as stack:
            head, _, content = rest(connected(server, stack, sent)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400")
        assert "error" in json.loads(content)
        assert all(f"{key}: {value}".encode() in head for key, value in HEADERS.items())
