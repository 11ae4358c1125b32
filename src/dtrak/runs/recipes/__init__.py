"""Recipes: all settings of a run, as YAML that is checked field by field.

The recipes with names, such as `digits`, are files beside this one; any other YAML file can be given by its path. The
section `small` of a recipe has the fields that differ at the small scale.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from dtrak.checks import shortened
from dtrak.errors import UsageError
from dtrak.models.families import FAMILIES
from dtrak.runs.recipes.reading import read_yaml, recipe_names, recipe_text
from dtrak.runs.recipes.schema import Attribution, Evaluation, Recipe, Training

SCALES = ("small",)
MOST_PROBLEMS = 10  # that one message lists
NOT_IN_FILES = ("projection_seed", "output", "ddim_steps", "guidance", "latents")  # set by the run

__all__ = [
    "Attribution",
    "Evaluation",
    "Recipe",
    "Training",
    "dump_recipe",
    "load_recipe",
    "recipe_names",
    "recipe_text",
]


def load_recipe(source: str, scale: str | None = None, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Load a recipe by its name or from a YAML file, at a `scale` that it has a section for, and change fields."""
    content = read_yaml(source)
    if isinstance(content, dict):
        scales = {name: content.pop(name) for name in SCALES if name in content}
        for name, section in scales.items():
            if not isinstance(section, dict):
                given = shortened(section)
                raise UsageError(f"{source}: {name}: it must hold the fields that differ (it says {given})")
        if scale is not None and scale not in scales:
            raise UsageError(f"{source} has no scale {scale!r}: {_known_scales(scales)}")
        content = _merged(_merged(content, scales.get(scale or "", {})), changes or {})
        model = content.get("model")
        kind = model.get("kind") if isinstance(model, dict) else None
        if isinstance(kind, str) and kind in FAMILIES:
            FAMILIES[kind].check_complete(model, f"{source} at scale {scale}" if scale else source)
    try:
        recipe = Recipe.model_validate(content)
    except UsageError as error:
        raise UsageError(f"{source}: {_described_setting(str(error))}") from None
    except ValidationError as error:
        problems = list(map(_described, error.errors()))
        more = f"; and {len(problems) - MOST_PROBLEMS} more" if len(problems) > MOST_PROBLEMS else ""
        raise UsageError(f"{source}: {'; '.join(problems[:MOST_PROBLEMS])}{more}") from None
    subset = recipe.data.subset
    return recipe if subset is None else recipe.with_subset(str(Path(source).parent / subset))


def _known_scales(scales: Mapping[str, Any]) -> str:
    return f"it has {', '.join(scales)}" if scales else "it has one scale only; leave --scale out"


def _merged(content: Any, changes: Any) -> Any:
    """Return nested mappings in which the changes replace the values of the content."""
    if not isinstance(content, dict) or not isinstance(changes, Mapping):
        return changes
    return content | {key: _merged(content.get(key), value) for key, value in changes.items()}


def _described(problem: Any) -> str:
    """Describe an error of pydantic: the field, what is wrong with it, and its value."""
    if problem["type"] == "value_error":  # raised by a validator of dtrak, with a complete message
        return str(problem["ctx"]["error"])
    location = problem["loc"]
    field = ".".join(map(str, location)) or "the recipe"
    has_value = problem["type"] != "missing" and location
    says = f" (it says {shortened(problem['input'])})" if has_value else ""
    return f"{field}: {problem['msg']}{says}"


def _described_setting(problem: str) -> str:
    """Describe an error of a setting of the attribution, "seed -3: it must not be …", in the form of other errors."""
    match = re.fullmatch(r"([a-z]+(?:-[a-z]+)*) (\S+): (.*)", problem)
    if match is None:
        return f"attribution: {problem}"
    return f"attribution.{match[1].replace('-', '_')}: {match[3]} (it says {match[2]})"


def dump_recipe(recipe: Recipe) -> str:
    """Return the YAML of a recipe, with the defaults filled in."""
    content = recipe.model_dump(mode="json")
    for name in NOT_IN_FILES:
        del content["attribution"][name]
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
