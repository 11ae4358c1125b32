"""A hub of models on this machine, which answers as huggingface.co does and remembers what was fetched from it."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

COMMIT = "0" * 40


@contextmanager
def hub_of(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """`huggingface_hub` finds OWNER/NAME in the folder, and downloads into the cache; gives the files that it got."""
    fetched: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_content=False)

        def do_GET(self) -> None:
            self.answer(with_content=True)

        def answer(self, with_content: bool) -> None:
            parts = self.path.partition("?")[0].strip("/").split("/")
            if parts[:2] == ["api", "models"]:
                self.describe("/".join(parts[2:4]), as_tree="tree" in parts[4:])
                return
            path = folder / "/".join(parts[:2]) / "/".join(parts[4:])  # OWNER/NAME/resolve/COMMIT/FILE
            if not path.is_file():
                self.send_error(404)
                return
            if with_content:
                fetched.append("/".join(parts[4:]))
            self.reply(path.read_bytes(), with_content)

        def describe(self, name: str, as_tree: bool) -> None:
            if not (folder / name).is_dir():
                self.send_error(404)
                return
            files = {path.relative_to(folder / name).as_posix(): path for path in (folder / name).rglob("*.*")}
            siblings = [{"rfilename": file} for file in files]
            tree = [
                {"type": "file", "path": file, "size": path.stat().st_size, "oid": file} for file, path in files.items()
            ]
            about = tree if as_tree else {"id": name, "sha": COMMIT, "siblings": siblings}
            self.reply(json.dumps(about).encode(), True)

        def reply(self, content: bytes, with_content: bool) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if with_content:
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    for name, value in {
        "ENDPOINT": address,
        "HUGGINGFACE_CO_URL_TEMPLATE": address + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_OFFLINE": False,
    }.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield fetched
    finally:
        server.shutdown()
        server.server_close()
