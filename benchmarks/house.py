"""How large and how tangled the package is: a table of counts, for one tree or for several side by side.

    python benchmarks/house.py [--tree FOLDER …] [--list]

Tokens are those of `tokenize`: comments, line breaks and indents do not count, a docstring counts one. A module is
loaded if it is in `sys.modules` of a fresh interpreter. A private function, with one leading underscore at the level of
its module or of a class, is called once if its file names it once beside its definition. `--list` names those
functions, and which of them have at most three lines without their heads and docstrings.
"""

import argparse
import ast
import os
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

MIDDLE = ("kernels", "inputs", "methods", "attribution")  # rooms where the kind of a value should be known
ASKED = ("hasattr", "getattr with a default", "isinstance", "cast", "type: ignore")
FEW_LINES = 3
UNCOUNTED = ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENCODING", "ENDMARKER")
COUNT = "\nimport sys; print(sum(name.split('.')[0] == 'dtrak' for name in sys.modules))"
ATTRIBUTE = """
import dtrak
model, images = dtrak.load_model("benchmarks/digits/model"), dtrak.load_images("digits:train")
dtrak.attribute(model, images.select(range(8)), images.select(range(2)), timesteps=2)
"""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).parent.parent
    parser.add_argument("--tree", type=Path, nargs="+", default=[here], help="folders that hold src/dtrak")
    parser.add_argument("--list", action="store_true", help="name the private functions that are called once")
    arguments = parser.parse_args()
    table = Table("")
    columns = [counts(tree.resolve()) for tree in arguments.tree]
    for tree in arguments.tree:
        table.add_column(tree.resolve().name, justify="right")
    for row in columns[0]:
        table.add_row(row, *(f"{column[row]:,}" for column in columns))
    Console().print(table)
    if arguments.list:
        for tree in arguments.tree:
            for path, function in called_once(tree / "src" / "dtrak"):
                short = "  (short)" * (lines_of(function) <= FEW_LINES)
                print(f"{path.relative_to(tree)}:{function.lineno} {function.name}{short}")


def counts(tree: Path) -> dict[str, int]:
    package = tree / "src" / "dtrak"
    files = sorted(package.rglob("*.py"))
    names = Counter(path.name for path in files if path.name != "__init__.py")
    methods = [path.stem for path in sorted((package / "methods").glob("[!_]*.py"))]
    once = [function for _, function in called_once(package)]
    own, every = imports_inside_functions(files)
    return {
        "tokens": sum(len(counted_tokens(path)) for path in files),
        "lines": sum(path.read_text().count("\n") for path in files),
        "files": len(files),
        "own modules after dtrak.attribute": loaded(tree, ATTRIBUTE),
        "own modules after a method file, at most": max(loaded(tree, f"import dtrak.methods.{one}") for one in methods),
        "files that share a base name": sum(number for number in names.values() if number > 1),
        "private functions called once": len(once),
        f"… of at most {FEW_LINES} lines": sum(lines_of(function) <= FEW_LINES for function in once),
        "own imports inside functions": own,
        "all imports inside functions": every,
        **{f"{name} in the middle rooms": number for name, number in kinds_asked_for(package).items()},
    }


def counted_tokens(path: Path) -> list[tokenize.TokenInfo]:
    """The tokens of a file that count. Python 3.12 splits an f-string into parts, of which the first counts."""
    depth, found = 0, []
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            name = tokenize.tok_name[token.type]
            if depth == 0 and name not in UNCOUNTED:
                found.append(token)
            depth += (name == "FSTRING_START") - (name == "FSTRING_END")
    return found


def loaded(tree: Path, code: str) -> int:
    """How many modules of the package a fresh interpreter has loaded after this code."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code + COUNT]
    done = subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return int(done.stdout.split()[-1])


def called_once(package: Path) -> Iterator[tuple[Path, Function]]:
    for path in sorted(package.rglob("*.py")):
        module = ast.parse(path.read_text())
        named = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(module)
            if isinstance(node, ast.Name | ast.Attribute)
        )
        for function in functions(module):
            if function.name.startswith("_") and not function.name.startswith("__") and named[function.name] == 1:
                yield path, function


def functions(node: ast.Module | ast.ClassDef) -> Iterator[Function]:
    for child in node.body:
        if isinstance(child, Function):
            yield child
        elif isinstance(child, ast.ClassDef):
            yield from functions(child)


def lines_of(function: Function) -> int:
    """The lines of its body, without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def imports_inside_functions(files: list[Path]) -> tuple[int, int]:
    """How many import statements stand inside functions: of the package's own modules, and of any."""
    found = {}
    for path in files:
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, Function):
                for node in ast.walk(function):
                    if isinstance(node, ast.Import | ast.ImportFrom):
                        found[path, node.lineno] = node
    modules = [node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in found.values()]
    return sum((module or "").split(".")[0] == "dtrak" for module in modules), len(modules)


def kinds_asked_for(package: Path) -> dict[str, int]:
    found = dict.fromkeys(ASKED, 0)
    for path in (path for room in MIDDLE for path in (package / room).glob("*.py")):
        found["type: ignore"] += path.read_text().count("type: ignore")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                with_default = node.func.id == "getattr" and len(node.args) == 3
                name = "getattr with a default" if with_default else node.func.id
                found[name] = found.get(name, 0) + (name in ASKED)
    return {name: found[name] for name in ASKED}


if __name__ == "__main__":
    main()
