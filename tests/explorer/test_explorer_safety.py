"""Nothing that is sent to the explorer does harm: bad pictures, names, forms and hosts, and too much of everything."""

import shutil
import socket
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dtrak.explorer.guard import MAX_BYTES
from serving import PATIENCE, Server, colourful, encoded, served


@pytest.fixture(scope="module")
def run(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path_factory.mktemp("explorer") / "run"))


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Server]:
    with served(run, "--method", "d-trak,relative-if") as started:
        yield started


def png_header(width: int, height: int) -> bytes:
    """A PNG that declares so many pixels and has next to none."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(10_000))) + chunk(b"IEND", b"")


BAD_UPLOADS = {
    "bomb": (png_header(60_000, 60_000), 413, "pixels"),
    "bomb below Pillow's own bound": (png_header(9_000, 9_000), 413, "9,000 × 9,000 pixels"),
    "text": (b"which training images made this?", 415, "not an image"),
    "empty": (b"", 415, "not an image"),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg" width="8" height="8"/>', 415, "PNG, JPEG, WEBP, BMP, GIF"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", 415, "not an image"),
    "truncated": (colourful(90)[:2000], 400, "truncated"),
    "no pixels behind the header": (png_header(500, 500), 400, "damaged"),
    "too many bytes": (bytes(MAX_BYTES + 1), 413, "20 MB"),
    "far too many bytes": (bytes(3 * MAX_BYTES), 413, "20 MB"),
    "32 bits": (encoded(Image.new("F", (8, 8)), "TIFF"), 415, "not an image"),
}


def everything(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "features" not in path.parts}


@pytest.mark.parametrize("name", BAD_UPLOADS)
def test_bad_uploads_are_refused_with_a_reason(server: Server, run: Path, name: str) -> None:
    content, status, reason = BAD_UPLOADS[name]
    before = everything(run.parent)
    response = server.ask(picture=("picture.png", content))
    assert response.status_code == status, response.text
    assert reason in response.json()["error"]
    assert everything(run.parent) == before
    assert server.get("answer", query="seed-00000.png")["query"]["id"] == "seed-00000.png"


@pytest.mark.parametrize("name", ["../../x.png", "/etc/x.png", "..\\..\\x.png", "a\x00b.png", "…/🖼.png", "x" * 2000])
def test_a_files_name_means_nothing(server: Server, run: Path, name: str) -> None:
    before = everything(run.parent)
    picture = encoded(Image.new("L", (8, 8), 37), "PNG")
    id_ = server.answered(server.ask(picture=(name, picture)))
    assert everything(run.parent) - before <= {run / "asked" / id_, run / "asked"}
    assert not (run.parent.parent / "x.png").exists()


@pytest.mark.parametrize(
    ("form", "status", "reason"),
    [
        ({"files": {"seed": (None, "-3")}}, 422, "'-3'"),
        ({"files": {"seed": (None, "1e3")}}, 422, "'1e3'"),
        ({"files": {"seed": (None, "9" * 30)}}, 422, "whole number"),
        ({"files": {"seed": (None, "٣")}}, 422, "whole number"),
        ({"files": {"seed": (None, "1"), "picture": ("x.png", b"")}}, 422, "not both"),
        ({"files": {"other": (None, "1")}}, 422, "send a picture"),
        ({"files": [("picture", ("x.png", b"1")), ("picture", ("y.png", b"2"))]}, 400, "Too many files"),
        ({"data": {"seed": "1"}}, 415, "multipart/form-data"),
        ({"content": b"junk", "headers": {"content-type": "multipart/form-data"}}, 400, "cannot be read"),
        ({"content": b"junk", "headers": {"content-type": "multipart/form-data; boundary=x"}}, 400, "cannot be read"),
    ],
)
def test_bad_forms_are_refused_with_a_reason(server: Server, form: Any, status: int, reason: str) -> None:
    response = server.client.post("/api/ask", **form)
    assert response.status_code == status, response.text
    assert reason in response.json()["error"]


@pytest.mark.parametrize(
    ("path", "status", "named"),
    [
        ("/api/answer?query=seed-00009.png", 404, "seed-00009.png"),
        ("/api/answer?query=../../recipe.yaml", 404, "../../recipe.yaml"),
        ("/api/answer", 404, "''"),
        ("/api/transpose?train=1000", 404, "'1000'"),
        ("/api/answer?query=seed-00001.png&method=magic", 422, "'magic'"),
        ("/api/answer?query=seed-00001.png&set=others", 422, "'others'"),
        ("/api/answer?query=seed-00001.png&damping=-1", 422, "'-1'"),
        ("/api/answer?query=seed-00001.png&damping=nan", 422, "'nan'"),
        ("/api/answer?query=seed-00001.png&damping=1e308", 422, "1e+308"),
        ("/api/answer?query=seed-00001.png&count=1000000", 422, "'1000000'"),
        ("/api/train?page=x", 422, "'x'"),
        ("/api/train?sort=beauty", 422, "'beauty'"),
        ("/api/train?sort=self&method=relative-if", 422, "relative-if"),
        ("/api/questions/ffff", 404, "'ffff'"),
        ("/images/small/train/1000", 404, "1000"),
        ("/images/small/../run.json/0", 404, "Not Found"),
        ("/images/huge/train/1", 422, "'huge'"),
        ("/images/small/asked/12345", 404, "12345"),
        ("/recipe.yaml", 404, "Not Found"),
        ("/%2e%2e/recipe.yaml", 404, "Not Found"),
        ("/app.py", 404, "Not Found"),
    ],
)
def test_bad_requests_are_refused_by_name(server: Server, path: str, status: int, named: str) -> None:
    server.get("damping", method="relative-if")  # which is ready then
    response = server.client.get(path)
    assert response.status_code == status, response.text
    assert named in response.json()["error"]


def test_only_the_own_page_may_use_it(server: Server) -> None:
    port = server.client.base_url.port
    seed = {"files": {"seed": (None, "1")}}
    for headers in ({"origin": "http://elsewhere.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        assert server.client.post("/api/ask", headers=headers, **seed).status_code == 403  # type: ignore[arg-type]
    for host in ("elsewhere.example", f"elsewhere.example:{port}", "127.0.0.1.elsewhere.example", ""):
        assert server.client.get("/api/run", headers={"host": host}).status_code == 400
    own = {"origin": f"http://localhost:{port}", "host": f"localhost:{port}", "sec-fetch-site": "same-origin"}
    assert server.client.post("/api/ask", headers=own, **seed).status_code == 202  # type: ignore[arg-type]
    page = server.client.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert server.client.get("/api/run").headers["cross-origin-resource-policy"] == "same-origin"


def test_a_flood_is_survived(server: Server) -> None:
    """Hundreds of connections at a time, some of which never finish their request."""
    address = ("127.0.0.1", server.client.base_url.port or 0)
    server.get("answer", query="seed-00001.png")
    begun = threading.Barrier(300)

    def request(number: int) -> int:
        begun.wait()
        connection = HTTPConnection(*address, timeout=PATIENCE)
        connection.request("GET", f"/api/answer?query=seed-00001.png&damping={number + 1}")
        return connection.getresponse().status

    hanging = [socket.create_connection(address) for _ in range(10)]
    for one in hanging:
        one.sendall(b"POST /api/ask HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n")
    with ThreadPoolExecutor(300) as threads:
        statuses = Counter(threads.map(request, range(300)))
    for one in hanging:
        one.close()
    assert set(statuses) == {200}
    time.sleep(0.2)
    assert server.get("answer", query="seed-00002.png")["query"]["id"] == "seed-00002.png"
    assert server.answered(server.ask(seed=2))


def test_other_sites_start_no_work(server: Server) -> None:
    for site in ("cross-site", "same-site"):
        response = server.client.get("/api/damping", headers={"Sec-Fetch-Site": site})
        assert response.status_code == 403
    assert server.client.get("/api/run", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_self_influence_is_never_made_up(server: Server) -> None:
    """Where nothing was asked yet, it is that of the run's other pictures; sums of nothing are refused."""
    expected = server.get("train", sort="self", set="generated", size=3)["items"]
    assert server.get("train", sort="self", set="asked", size=3)["items"] == expected
    assert expected[0]["score"] != 0


def test_a_prompt_for_a_model_that_takes_none_is_refused(server: Server) -> None:
    response = server.client.post("/api/ask", files={"seed": (None, "3"), "prompt": (None, "a disc")})
    assert response.status_code == 422
    assert response.json()["error"] == "this run's model takes no prompts"
