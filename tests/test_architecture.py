"""The rooms of the package: each may know those that come before it, and no other; nothing imports in a circle."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import dtrak

PACKAGE = Path(dtrak.__file__).parent
ROOMS = (
    "root",
    "engines",
    "figures",
    "images",
    "models",
    "gradients",
    "features",
    "kernels",
    "methods",
    "attribution",
    "runs",
    "evaluation",
    "report",
    "explorer",
    "cli",
)
MOST_LINES = 400


def modules() -> dict[str, Path]:
    """Every module of the package by its name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("dtrak", *path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(module: str) -> Iterator[str]:
    """The modules of the package that a module imports, anywhere in it; imports for types alone do not count."""
    tree = ast.parse(MODULES[module].read_text())
    for node in list(ast.walk(tree)):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dtrak":
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                yield inner if inner in MODULES else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in MODULES)


def room(module: str) -> str:
    """`dtrak.models.loras` → models; what stands in no package is at the root."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else "root"


# The package's own front page opens every room on demand, and `python -m dtrak` is the command line.
INSIDE = [module for module in MODULES if module not in ("dtrak", "dtrak.__main__")]


def test_every_room_is_in_the_list() -> None:
    assert {room(module) for module in INSIDE} == set(ROOMS)


def test_no_room_knows_a_higher_one() -> None:
    upward = [
        f"{module} imports {other}"
        for module in INSIDE
        for other in imports(module)
        if ROOMS.index(room(other)) > ROOMS.index(room(module))
    ]
    assert not upward


def test_nothing_imports_in_a_circle() -> None:
    # A package's own page gathers what its modules offer, so that it counts as their user.
    graph = {module: {other for other in imports(module) if other != module} for module in INSIDE}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_files_stay_short() -> None:
    long = {
        module: lines for module, path in MODULES.items() if (lines := len(path.read_text().splitlines())) > MOST_LINES
    }
    assert not long


@pytest.mark.parametrize(
    "module", ["dtrak.methods", "dtrak.models", "dtrak.models.families.flux", "dtrak.runs.recipes"]
)
def test_what_is_wrong_is_said_before_diffusers_is_imported(module: str) -> None:
    """Its import takes seconds."""
    code = f"import sys, {module}; sys.exit(any(name in sys.modules for name in ('diffusers', 'transformers', 'peft')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
