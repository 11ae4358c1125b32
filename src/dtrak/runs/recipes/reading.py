"""Find the YAML of a recipe by its name or path, and read it safely.

With aliases, a small text can describe a huge or endless tree. So the nodes are counted, with all aliases replaced by
what they stand for, before any Python object is made.
"""

import os
import stat
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from dtrak.checks import shortened
from dtrak.errors import UsageError

MOST_BYTES = 1 << 20  # a recipe has a few thousand
MOST_LEVELS = 32  # of nested mappings and lists
MOST_NODES = 20_000  # names and values, with all aliases replaced


def recipe_names() -> list[str]:
    """Return the names of the recipes in this package."""
    folder = files("dtrak.runs.recipes")
    return sorted(path.name.removesuffix(".yaml") for path in folder.iterdir() if path.name.endswith(".yaml"))


def recipe_text(source: str) -> str:
    """Return the YAML text of a recipe, with its comments."""
    if source in recipe_names():
        return (files("dtrak.runs.recipes") / f"{source}.yaml").read_text(encoding="utf-8")
    try:
        found = os.stat(source)
        if stat.S_ISDIR(found.st_mode):
            raise UsageError(f"{source} is a folder, not a recipe: give a YAML file, such as a run's recipe.yaml")
        if not stat.S_ISREG(found.st_mode):  # a pipe or a device might never end
            raise UsageError(f"{source} is not a file that holds a recipe: it is a pipe, a socket or a device")
        if found.st_size > MOST_BYTES:
            raise UsageError(f"{source} is not a recipe: it has {found.st_size:,} bytes, more than {MOST_BYTES:,}")
        return Path(source).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not a recipe: {error}") from None
    except PermissionError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}") from None
    except (OSError, ValueError):  # no file has this name, or no file can have it
        names = ", ".join(recipe_names())
        raise UsageError(f"unknown recipe {shortened(source)}: choose from {names}, or give a YAML file") from None


def read_yaml(source: str) -> Any:
    """Read the YAML of a recipe into Python objects, without checking its fields."""
    text = recipe_text(source)
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_size(node, source)
        return loader.construct_document(node)
    except UsageError:
        raise
    except RecursionError:
        raise UsageError(f"{source} is not a recipe: its brackets are nested more than {MOST_LEVELS} deep") from None
    except Exception as error:  # errors of PyYAML, and of Python for impossible numbers and dates
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise UsageError(f"{source} is not YAML{where}: {getattr(error, 'problem', error)}") from None


def _check_size(root: yaml.Node, source: str) -> None:
    """Refuse a tree that is too deep or too large once its aliases are replaced, which may make it endless."""
    waiting, count = [(root, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if depth > MOST_LEVELS:
            raise UsageError(f"{source} is not a recipe: its brackets or aliases are more than {MOST_LEVELS} deep")
        if count > MOST_NODES:
            raise UsageError(f"{source} is not a recipe: with aliases replaced, it has more than {MOST_NODES:,} values")
        if isinstance(node, yaml.SequenceNode):
            waiting += [(child, depth + 1) for child in node.value]
        elif isinstance(node, yaml.MappingNode):
            waiting += [(child, depth + 1) for pair in node.value for child in pair]
