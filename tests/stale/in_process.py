"""Commands in this process, and how much the networks in it compute."""

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import uvicorn
from starlette.testclient import TestClient

from dtrak.cli import main
from dtrak.errors import DtrakError


class RefusedError(Exception):
    """A question was refused in one line."""


def command(*arguments: object) -> None:
    """Run `dtrak` in the current folder to its end."""
    out, err, code, typed = io.StringIO(), io.StringIO(), None, sys.argv
    sys.argv = ["dtrak", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = typed
        logging.disable(logging.NOTSET)
    if code:
        last = err.getvalue().splitlines()[-1]
        assert last.startswith("dtrak: "), err.getvalue()
        assert "(--debug shows where)" not in last, last
        raise RefusedError(last.removeprefix("dtrak: "))


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Python code in a notebook: a refusal is an error of dtrak's own kinds."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    except DtrakError as error:
        raise RefusedError(str(error)) from None


def explore(*arguments: object, asking: Callable[[TestClient], Any]) -> Any:
    """Run `dtrak serve` up to where its server would wait for requests; return what `asking` gets from its pages."""
    answers: list[Any] = []

    def run(server: uvicorn.Server, sockets: Any = None) -> None:
        try:
            answers.append(asking(TestClient(server.config.app, base_url="http://127.0.0.1")))
        except RefusedError as error:
            answers.append(error)

    usual, uvicorn.Server.run = uvicorn.Server.run, run  # type: ignore[method-assign]
    try:
        command("serve", *arguments, "--no-browser", "--port", 0)
    finally:
        uvicorn.Server.run = usual  # type: ignore[method-assign]
    if isinstance(answers[0], RefusedError):
        raise answers[0]
    return answers[0]


class Work:
    """Counts the rows that pass through modules of torch, in all threads."""

    rows = 0

    def __init__(self) -> None:
        torch.nn.modules.module.register_module_forward_pre_hook(self._count)

    def _count(self, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        first = next((one for one in inputs if isinstance(one, torch.Tensor)), None)
        self.rows += 1 if first is None or not first.dim() else len(first)

    @contextlib.contextmanager
    def counted(self) -> Iterator[list[int]]:
        """Yields a list to which the number of rows is added when the block ends."""
        before, found = self.rows, list[int]()
        try:
            yield found
        finally:
            found.append(self.rows - before)
