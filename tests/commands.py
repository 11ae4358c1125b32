"""Run `dtrak` as its users do: every command is a process of its own, with its own output, signals and exit code.

Most are forked from a server that has imported torch and diffusers already, which saves the eight seconds that this
takes; `dtrak_fresh` starts from nothing, as a shell does.
"""

import importlib
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

processes = multiprocessing.get_context("forkserver")
# What most commands take up late would be imported again by each of them.
processes.set_forkserver_preload(
    [
        "sklearn.datasets",
        "dtrak.cli.attribute_command",
        "dtrak.cli.evaluate_commands",
        "dtrak.cli.index_commands",
        "dtrak.cli.list_commands",
        "dtrak.cli.run_commands",
        "dtrak.models.families.unet2d",
        "diffusers.models.unets.unet_2d",
        "diffusers.pipelines.ddpm.pipeline_ddpm",
        "diffusers.schedulers.scheduling_flow_match_euler_discrete",
        "peft",
    ]
)

LONGEST = 900  # seconds


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line on standard error that a failed command leaves."""
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("dtrak: "), self.err
        return self.err.removeprefix("dtrak: ").rstrip("\n")


@dataclass(frozen=True)
class Place:
    """Where a command runs, and how."""

    cwd: Path
    largest_file: int | None = None  # no file that it writes can grow beyond so many bytes
    out: Path | None = None  # a file to which the shell appends standard output
    packages: Path | None = None  # a folder of installed packages, as PYTHONPATH names one
    constants: Mapping[str, float] = field(default_factory=dict)  # other values of constants, by their full names


def dtrak(*arguments: object, cwd: Path, **more: Any) -> Outcome:
    """Run a command to its end, in a `Place`."""
    with dtrak_started(*arguments, cwd=cwd, **more) as command:
        return command.outcome()


@contextmanager
def dtrak_started(*arguments: object, cwd: Path, **more: Any) -> Iterator["Command"]:
    """Start a command in a `Place`, and leave it running."""
    with tempfile.TemporaryDirectory() as streams:
        process = processes.Process(target=_become, args=([str(one) for one in arguments], streams, Place(cwd, **more)))
        process.start()
        try:
            yield Command(process, Path(streams))
        finally:
            process.kill()
            process.join()


@dataclass(frozen=True)
class Command:
    process: multiprocessing.process.BaseProcess
    streams: Path

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    @property
    def runs(self) -> bool:
        return self.process.is_alive()

    def outcome(self) -> Outcome:
        self.process.join(LONGEST)
        assert self.process.exitcode is not None, "it does not end"
        return Outcome(self.process.exitcode, *((self.streams / name).read_text() for name in ("out", "err")))


def _become(arguments: list[str], streams: str, place: Place) -> None:
    from dtrak.cli import main

    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(streams, name), os.O_WRONLY | os.O_CREAT), descriptor)
    if place.out is not None:
        os.dup2(os.open(place.out, os.O_WRONLY | os.O_APPEND), 1)
    os.chdir(place.cwd)
    if place.largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (place.largest_file, place.largest_file))
    if place.packages is not None:
        sys.path.insert(0, str(place.packages))
    for name, value in place.constants.items():
        module, _, constant = name.rpartition(".")
        setattr(importlib.import_module(module), constant, value)
    sys.argv = ["dtrak", *arguments]
    main()


def dtrak_fresh(*arguments: object, cwd: Path, **environment: str) -> Outcome:
    """Run the installed command, as a shell does, with nothing imported before."""
    done = subprocess.run(
        [Path(sys.executable).parent / "dtrak", *map(str, arguments)],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
