"""Recipes: everything that a run needs to be done again, as YAML that is checked field by field.

`digits` and the like are files beside this one; any path to a YAML file works as well. A section `small` in it has the
fields that differ when the same is tried at a small scale.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from dtrak.errors import UsageError
from dtrak.limits import shortened
from dtrak.models.families import FAMILIES
from dtrak.runs.recipes.reading import read_yaml, recipe_names, recipe_text
from dtrak.runs.recipes.schema import Attribution, Evaluation, Recipe, Training

SCALES = ("small",)
MOST_TOLD = 10  # problems of a recipe in one message
NOT_IN_FILES = ("projection_seed", "subsets", "output", "ddim_steps", "guidance", "latents")  # which a run decides

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
    """A recipe by name or from a YAML file, at a `scale` that it has a section for, with `changes` to its fields."""
    content = read_yaml(source)
    if isinstance(content, dict):
        scales = {name: content.pop(name) for name in SCALES if name in content}
        for name, own in scales.items():
            if not isinstance(own, dict):
                raise UsageError(f"{source}: {name}: it must hold the fields that differ (it says {shortened(own)})")
        if scale is not None and scale not in scales:
            raise UsageError(f"{source} has no scale {scale!r}: {_known_scales(scales)}")
        content = _merged(_merged(content, scales.get(scale or "", {})), changes or {})
        model = content.get("model")
        if isinstance(model, dict) and model.get("kind") in FAMILIES:
            FAMILIES[model["kind"]].check_complete(model, f"{source} at scale {scale}" if scale else source)
    try:
        recipe = Recipe.model_validate(content)
    except UsageError as error:
        raise UsageError(f"{source}: {_described_setting(str(error))}") from None
    except ValidationError as error:
        problems = list(map(_described, error.errors()))
        more = f"; and {len(problems) - MOST_TOLD} more" if len(problems) > MOST_TOLD else ""
        raise UsageError(f"{source}: {'; '.join(problems[:MOST_TOLD])}{more}") from None
    subset = recipe.data.subset
    return recipe if subset is None else recipe.with_subset(str(Path(source).parent / subset))


def _known_scales(scales: Mapping[str, Any]) -> str:
    return f"it has {', '.join(scales)}" if scales else "it has only its own; leave --scale out"


def _merged(content: Any, changes: Any) -> Any:
    """Nested mappings, with what the changes say in the place of what was there."""
    if not isinstance(content, dict) or not isinstance(changes, Mapping):
        return changes
    return content | {key: _merged(content.get(key), value) for key, value in changes.items()}


def _described(problem: Any) -> str:
    """One of pydantic's errors: the field, what is wrong with it, and what it says."""
    if problem["type"] == "value_error":  # one of ours, above
        return str(problem["ctx"]["error"])
    place = problem["loc"]
    field = ".".join(map(str, place)) or "the recipe"
    is_clear = problem["type"] == "missing" or not place
    says = "" if is_clear else f" (it says {shortened(problem['input'])})"
    return f"{field}: {problem['msg']}{says}"


def _described_setting(problem: str) -> str:
    """What is wrong with a setting of the attribution, in the words of the others: "seed -3: it must not be …"."""
    match = re.fullmatch(r"([a-z]+(?:-[a-z]+)*) (\S+): (.*)", problem)
    if match is None:
        return f"attribution: {problem}"
    return f"attribution.{match[1].replace('-', '_')}: {match[3]} (it says {match[2]})"


def dump_recipe(recipe: Recipe) -> str:
    """The YAML of a recipe, with all that it leaves to defaults."""
    content = recipe.model_dump(mode="json")
    for name in NOT_IN_FILES:
        del content["attribution"][name]
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
