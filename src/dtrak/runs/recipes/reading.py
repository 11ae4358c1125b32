"""The YAML of a recipe: found by its name or path, and read without trusting it.

Aliases can make a small text an endless or a huge tree. So its nodes are counted, with everything that an alias stands
for, before any of them becomes an object.
"""

import os
import stat
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from dtrak.errors import UsageError
from dtrak.limits import shortened

LONGEST = 1 << 20  # bytes; a recipe has a few thousand
DEEPEST = 32  # mappings and lists in each other
LARGEST = 20_000  # names and values, aliases written out


def recipe_names() -> list[str]:
    folder = files("dtrak.runs.recipes")
    return sorted(path.name.removesuffix(".yaml") for path in folder.iterdir() if path.name.endswith(".yaml"))


def recipe_text(source: str) -> str:
    """The YAML of a recipe as it was written, comments included."""
    if source in recipe_names():
        return (files("dtrak.runs.recipes") / f"{source}.yaml").read_text(encoding="utf-8")
    try:
        found = os.stat(source)
        if stat.S_ISDIR(found.st_mode):
            raise UsageError(f"{source} is a folder, not a recipe: give a YAML file, such as a run's recipe.yaml")
        if not stat.S_ISREG(found.st_mode):  # a pipe or a device need not ever end
            raise UsageError(f"{source} is not a file that holds a recipe: it is a pipe, a socket or a device")
        if found.st_size > LONGEST:
            raise UsageError(f"{source} is not a recipe: it has {found.st_size:,} bytes, and more than {LONGEST:,}")
        return Path(source).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not a recipe: {error}") from None
    except PermissionError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}") from None
    except (OSError, ValueError):  # nothing has that name, or nothing can have it
        names = ", ".join(recipe_names())
        raise UsageError(f"unknown recipe {shortened(source)}: choose from {names}, or give a YAML file") from None


def read_yaml(source: str) -> Any:
    """What the YAML of a recipe says, unchecked."""
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
        raise UsageError(
            f"{source} is not a recipe: its brackets are in each other, more than {DEEPEST} deep"
        ) from None
    except Exception as error:  # PyYAML's own, and whatever numbers and dates that there are not raise in it
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise UsageError(f"{source} is not YAML{where}: {getattr(error, 'problem', error)}") from None


def _check_size(root: yaml.Node, source: str) -> None:
    """Refuse a tree that is too deep or too large, also by aliases: one that leads back to itself has no end."""
    waiting, count = [(root, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if depth > DEEPEST:
            raise UsageError(f"{source} is not a recipe: its brackets or aliases are more than {DEEPEST} deep")
        if count > LARGEST:
            raise UsageError(f"{source} is not a recipe: its aliases written out, it has more than {LARGEST:,} values")
        if isinstance(node, yaml.SequenceNode):
            waiting += [(child, depth + 1) for child in node.value]
        elif isinstance(node, yaml.MappingNode):
            waiting += [(child, depth + 1) for pair in node.value for child in pair]
