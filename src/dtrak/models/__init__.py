"""The models that can be attributed: one small interface over diffusers, which nothing else in the package knows."""

from pathlib import Path

import torch

from dtrak.errors import UsageError
from dtrak.models import ddpm
from dtrak.models.diffusion import DiffusionModel
from dtrak.models.pipelines import is_lora, is_pipeline, local_folder
from dtrak.runs.recipes import DDPMRecipe, Model

# Stable Diffusion is imported where it is needed: transformers and peft take seconds.

__all__ = ["DiffusionModel", "check_buildable", "load_model", "new_model", "save_model"]


def new_model(recipe: Model, shape: tuple[int, int, int], source: str) -> DiffusionModel:
    """A recipe's model for images of `shape` (C, H, W); what is new of it is drawn from torch's global generator."""
    if isinstance(recipe, DDPMRecipe):
        return ddpm.new(recipe.unet, recipe.schedule.model_dump(), shape, source)
    from dtrak.models import stable_diffusion

    return stable_diffusion.new(recipe.base, recipe.lora, recipe.prompt, shape, source)


def check_buildable(recipe: Model, shape: tuple[int, int, int], images: str, source: str) -> None:
    """Refuse a recipe whose model cannot be made for images of `shape`, from `images`; no weights are made or read."""
    if isinstance(recipe, DDPMRecipe):
        with torch.device("meta"):
            new_model(recipe, shape, source)
        return
    from dtrak.models import stable_diffusion

    stable_diffusion.check(recipe.base, recipe.lora, shape, images, source)


def save_model(model: DiffusionModel, folder: Path) -> None:
    """Write a folder that `load_model` and diffusers open: all of a model, or its LoRA."""
    if not model.has_lora:
        if model.autoencoder is not None or model.prompts is not None:
            raise UsageError(f"{model.source}: of a Stable Diffusion pipeline, only a LoRA can be saved")
        ddpm.save(model, folder)
        return
    from dtrak.models import stable_diffusion

    stable_diffusion.save(model, folder)


def load_model(source: str, lora: str | None = None, prompt: str | None = None) -> DiffusionModel:
    """Open a diffusers folder or a hub id: a DDPM, a Stable Diffusion pipeline, or a LoRA that names its pipeline.

    `lora` is a folder, file or hub id of LoRA weights for the pipeline `source`, and `prompt` the template of its
    images' prompts, such as "a {label} painting".
    """
    folder = local_folder(source)
    if (folder / "recipe.yaml").exists() and (folder / "model").is_dir():
        raise UsageError(f"{source} is a run: its model is {folder / 'model'}")
    if is_lora(folder) or is_pipeline(folder):
        from dtrak.models import stable_diffusion

        if is_lora(folder) and lora is None:
            return stable_diffusion.load_lora(folder, prompt)
        return stable_diffusion.load(folder, source, lora, prompt)
    for option, value in {"lora": lora, "prompt": prompt}.items():
        if value is not None:
            raise UsageError(f"{option} {value!r}: {source} is not a Stable Diffusion pipeline")
    return ddpm.load(folder, source)
