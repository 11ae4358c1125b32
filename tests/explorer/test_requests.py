"""Whatever is asked of the explorer has an answer or a reason: none is a fault of the server's, none lacks a guard."""

import json
import shutil
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dtrak.explorer.guard import HEADERS
from dtrak.explorer.server import MAX_CONNECTIONS
from serving import PATIENCE, Server, served

METHODS = ("mixed-trak", "d-trak", "relative-if", "gradient-dot")


@pytest.fixture(scope="module")
def run(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path_factory.mktemp("explorer") / "run"))


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Server]:
    with served(run, "--method", ",".join(METHODS)) as started:
        for method in METHODS:
            for name in ("generated", "validation"):
                started.get("damping", set=name, method=method)
        yield started
        assert "Error" not in started.command.streams.joinpath("err").read_text()


def asked(
    server: Server, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[HTTPResponse, bytes]:
    """The answer to a request, as it goes over the wire."""
    port = server.client.base_url.port
    assert port is not None
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection._validate_path = lambda url: None  # type: ignore[attr-defined]  # to send what is wrong as well
    connection.request(method, target, body or None, {"Connection": "close", **(headers or {})})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response, content


def check(response: HTTPResponse, content: bytes) -> None:
    """No fault of the server's, the guard's headers, and JSON with a reason unless it is what was asked for."""
    assert response.status < 500 or response.status == 503, content
    for name, value in HEADERS.items():
        assert response.getheader(name) == value
    assert response.getheader("Cache-Control")
    if response.status >= 400 and content:
        assert json.loads(content)["error"]
    elif content and "json" in (response.getheader("Content-Type") or ""):
        assert "NaN" not in content.decode()
        json.loads(content)


NUMBERS = ["0", "1", "-1", "500", "501", "1e3", "9" * 30, "9" * 5000, "٣", "", " 1", "0x1", "1_0", "nan", "1000000000"]
DAMPINGS = [
    *(
        "1e30",
        "1e-320",
        "1e-30",
        "1e150",
        "1e300",
        "1e308",
        "nan",
        "inf",
        "-inf",
        "0",
        "-0.0",
        "1_0",
        "auto",
        "spectrum",
    ),
    *("absolute:1e300", "absolute:1e-320", "absolute:5e-324", "absolute:nan", "absolute:", "relative", "9" * 400),
]
TEXTS = [
    "",
    "x" * 12_000,
    "../../etc/passwd",
    "a\0b",
    "'\"<script>",
    "\r\nSet-Cookie: x=1",
    "🖼\u202e",
    "%",
    "1 " * 4000,
]
IDS = ["seed-00001.png", "3", "0", *TEXTS]
PARAMETERS = {
    "set": ["generated", "validation", "asked", *TEXTS],
    "method": [*METHODS, *TEXTS],
    "damping": [*DAMPINGS, *TEXTS],
    "query": IDS,
    "train": IDS,
    "search": ["seed", "1", *TEXTS],
    "label": ["3", "nan", *TEXTS],
    "sort": ["id", "self", "total", "oldest", "newest", *TEXTS],
    "page": NUMBERS,
    "size": NUMBERS,
    "count": NUMBERS,
    "unknown": TEXTS,
}
PATHS = ["run", "damping", "train", "queries", "answer", "transpose", "scores.csv", "questions/x", "ask", "", "nothing"]


@pytest.mark.parametrize("path", ["damping", "answer", "transpose", "train", "scores.csv"])
@pytest.mark.parametrize("method", METHODS)
def test_every_damping_has_an_answer_or_a_reason(server: Server, path: str, method: str) -> None:
    more = {"answer": "query=seed-00001.png", "transpose": "train=3", "train": "sort=total&size=2"}.get(path, "")
    for damping in DAMPINGS:
        for each in ("self", "total") if path == "train" else ("",):
            target = f"/api/{path}?{more.replace('total', each or 'total')}&method={method}&damping={quote(damping)}"
            response, content = asked(server, "GET", target)
            check(response, content)
            assert response.status in (200, 422), (target, content)


@pytest.mark.parametrize("name", ["size", "page", "count"])
def test_every_number_has_an_answer_or_a_reason(server: Server, name: str) -> None:
    for number in NUMBERS:
        for path in ("train", "queries", "answer"):
            response, content = asked(server, "GET", f"/api/{path}?query=seed-00001.png&{name}={quote(number)}")
            check(response, content)
    response, content = asked(server, "GET", "/api/train?size=0")
    assert response.status == 422
    assert b"size '0'" in content


@pytest.mark.parametrize("number", [*NUMBERS[5:], "999999", "%00", "1%0d%0aX: y"])
def test_no_number_of_an_image_does_harm(server: Server, number: str) -> None:
    response, content = asked(server, "GET", f"/images/small/train/{quote(number, safe='%')}")
    check(response, content)
    assert response.status in (200, 404)
    assert response.getheader("X") is None


queries = st.lists(
    st.sampled_from([*PARAMETERS]).flatmap(lambda name: st.tuples(st.just(name), st.sampled_from(PARAMETERS[name]))),
    max_size=5,
)
MORE = [*HEADERS, "Range", "Expect", "Upgrade", "Accept-Encoding", "If-Modified-Since", "X-Forwarded-Host", "Origin"]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["GET", "GET", "GET", "HEAD", "OPTIONS", "DELETE", "PUT", "PATCH", "TRACE", "POST", "FOO"]),
    path=st.one_of(
        st.sampled_from([f"/api/{one}" for one in PATHS]), st.text(max_size=20).map(lambda one: "/" + quote(one))
    ),
    query=queries,
    headers=st.dictionaries(
        st.sampled_from(MORE), st.sampled_from(["", "x", "bytes=0-", "websocket", "http://x"]), max_size=2
    ),
)
def test_no_request_is_a_fault_of_the_servers(
    server: Server, method: str, path: str, query: list[tuple[str, str]], headers: dict[str, str]
) -> None:
    check(*asked(server, method, f"{path}?{urlencode(query)}", headers=headers))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=st.binary(max_size=60))
def test_no_bytes_of_a_query_are(server: Server, query: bytes) -> None:
    target = "/api/train?" + query.decode("latin-1").translate(dict.fromkeys((*range(33), *range(127, 256))))
    check(*asked(server, "GET", target))


def test_addresses_that_are_too_long_are_refused(server: Server) -> None:
    for length, statuses in ((12_000, {200}), (20_000, {414, 400})):  # 400 if it comes in parts
        response, content = asked(server, "GET", "/api/train?search=" + "x" * length)
        check(response, content)
        assert response.status in statuses


def test_no_one_is_sent_elsewhere(server: Server) -> None:
    response, content = asked(server, "GET", "/api/run/")
    check(response, content)
    assert (response.status, response.getheader("Location")) == (404, None)


def test_a_websocket_is_answered_as_any_request(server: Server) -> None:
    key = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "x" * 22,
        "Sec-WebSocket-Version": "13",
    }
    response, content = asked(server, "GET", "/api/run", headers=key)
    check(response, content)
    assert response.status == 200


FORM = b'--x\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n--x--\r\n'
STRANGE = [
    "\x01",
    "utf-7",
    "idna",
    "punycode",
    "unicode_escape",
    "hex",
    "zlib",
    "utf-16",
    "rot13",
    "undefined",
    "x" * 500,
]


@pytest.mark.parametrize("charset", STRANGE)
def test_forms_in_strange_encodings_are_read_or_refused(server: Server, charset: str) -> None:
    for field, more, content in (
        (b"seed", b"", b"+2AA-"),
        (b"prompt", b"", b"\\ud800"),
        (b"a..b", b"; filename=\xff", b"x"),
    ):
        headers = {"Content-Type": f"multipart/form-data; boundary=x; charset={charset}"}
        response, told = asked(server, "POST", "/api/ask", FORM % (field, more, content), headers)
        check(response, told)
        assert 400 <= response.status < 500


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(
        ["multipart/form-data; boundary=x", "multipart/form-data", "multipart/form-data; boundary=", "text/plain", ""]
    ),
    body=st.one_of(
        st.binary(max_size=200),
        st.tuples(
            st.sampled_from([b"seed", b"picture", b"prompt", b""]),
            st.sampled_from([b"", b"; filename=y", b"; filename*=x''%ff"]),
            st.binary(max_size=50),
        ).map(lambda parts: FORM % parts),
    ),
)
def test_no_form_is_a_fault_of_the_servers(server: Server, kind: str, body: bytes) -> None:
    response, told = asked(server, "POST", "/api/ask", body, {"Content-Type": kind})
    check(response, told)
    assert response.status >= 400 or b'"question"' in told


def test_a_client_that_leaves_early_leaves_no_trace(server: Server) -> None:
    """In the midst of a table, or of a form."""
    port = server.client.base_url.port
    for sent in (
        b"GET /api/scores.csv?set=validation HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"POST /api/ask HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=x\r\n"
        b"Content-Length: 99\r\n\r\n--x",
    ):
        with socket.create_connection(("127.0.0.1", port)) as one:
            one.sendall(sent)
            one.settimeout(0.3)
            with suppress(TimeoutError):
                one.recv(100)
    assert server.get("run")["name"] == "run"


def test_answers_on_one_connection_come_at_once(server: Server) -> None:
    connection = HTTPConnection("127.0.0.1", server.client.base_url.port, timeout=PATIENCE)
    medians = []
    for batch in range(10):  # of which one will find the machine idle
        taken = []
        for number in range(30):
            started = time.perf_counter()
            target = f"/api/answer?query=seed-00001.png&method=d-trak&damping={1 + batch + number / 100}"
            connection.request("GET", target)
            response = connection.getresponse()
            assert response.status == 200
            response.read()
            taken.append(time.perf_counter() - started)
        medians.append(statistics.median(taken))
    connection.close()
    assert min(medians) <= 0.005  # 44 ms where the system waits for more to send


def test_half_requests_keep_no_one_from_an_answer(server: Server) -> None:
    form = b"POST /api/ask HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    halves = (b"", b"GET /api/ru", b"GET /api/run HTTP/1.1\r\nHost: 127.0.0.1\r\nAcc", form + b"Content-Length: 9\r\n")
    with ExitStack() as stack:
        for sent in halves * 20:
            one = stack.enter_context(socket.create_connection(("127.0.0.1", server.client.base_url.port)))
            one.sendall(sent)
        response, content = asked(server, "GET", "/api/run")
        check(response, content)
        assert response.status == 200


def test_more_connections_than_there_may_be(server: Server) -> None:
    """Who comes then is told to try again."""
    with ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.client.base_url.port)))
        assert asked(server, "GET", "/api/run")[0].status == 503
    time.sleep(0.5)
    assert asked(server, "GET", "/api/run")[0].status == 200


def test_an_image_whose_file_has_gone_is_not_there(server: Server, run: Path) -> None:
    (run / "generated" / "seed-00003.png").rename(run / "generated" / "gone.png")
    response, content = asked(server, "GET", "/images/large/generated/3")
    check(response, content)
    assert response.status == 404
