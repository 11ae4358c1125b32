"""Whether a model is the one that a recipe makes: the same network and schedule, or the same LoRA on the same pipeline.

Weights are not compared: they depend on training.
"""

import json
from typing import Any

import torch
from diffusers import UNet2DConditionModel

from dtrak.models import ddpm
from dtrak.models.diffusion import DiffusionModel
from dtrak.runs.recipes import DDPMRecipe, Model, StableDiffusionRecipe, first_difference

DDPM, WITH_LORA, WITHOUT_LORA = "a DDPM", "Stable Diffusion with a LoRA", "Stable Diffusion without a LoRA"


def difference(
    model: DiffusionModel, recipe: Model, shape: tuple[int, int, int], source: str
) -> tuple[str, Any, Any] | None:
    """Where a model differs first from what a recipe makes for images of `shape`: ("unet.dropout", 0.0, 0.1)."""
    kind = DDPM if model.prompts is None else WITH_LORA if model.has_lora else WITHOUT_LORA
    wanted = DDPM if isinstance(recipe, DDPMRecipe) else WITH_LORA
    if kind != wanted:
        return "the kind", kind, wanted
    if isinstance(recipe, DDPMRecipe):
        return _of_ddpm(model, recipe, shape, source)
    return _of_lora(model, recipe, source)


def _of_ddpm(
    model: DiffusionModel, recipe: DDPMRecipe, shape: tuple[int, int, int], source: str
) -> tuple[str, Any, Any] | None:
    with torch.device("meta"):
        built = ddpm.new(recipe.unet, recipe.schedule.model_dump(), shape, source)
    wanted = {"unet": _settings(built.network), "schedule": _settings(built.scheduler)}
    own = {"unet": _settings(model.network), "schedule": _settings(model.scheduler)}
    # A folder may say more than diffusers asks for.
    there = {part: {name: own[part].get(name) for name in names} for part, names in wanted.items()}
    return first_difference(there, wanted)


def _settings(part: Any) -> dict[str, Any]:
    """What a network or a schedule was made with, as JSON has it: lists, no tuples."""
    config = {name: value for name, value in part.config.items() if not name.startswith("_")}
    return dict(json.loads(json.dumps(config, default=str)))


def _of_lora(model: DiffusionModel, recipe: StableDiffusionRecipe, source: str) -> tuple[str, Any, Any] | None:
    from dtrak.models import stable_diffusion

    with torch.device("meta"):
        built = UNet2DConditionModel.from_config(model.network.config)
        stable_diffusion.add_lora(built, recipe.lora, source)
    assert model.prompts is not None
    there = {"base": model.base, "prompt": model.prompts.template, **stable_diffusion.lora_of(model.network)}
    wanted = {
        "base": stable_diffusion.full_name(recipe.base),
        "prompt": recipe.prompt,
        **stable_diffusion.lora_of(built),
    }
    return first_difference(there, wanted)
