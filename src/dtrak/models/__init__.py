"""The models that can be attributed: one small interface over diffusers, which no other part of the package imports."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtrak.errors import UsageError
from dtrak.models.families import FAMILIES, family_of, family_that_opens

if TYPE_CHECKING:
    from dtrak.models.diffusion import DiffusionModel

__all__ = ["DiffusionModel", "load_model", "new_model", "save_model"]


def __getattr__(name: str) -> Any:
    """Import on first use: diffusers takes seconds to import, and a mistake in a recipe should be reported before."""
    if name == "DiffusionModel":
        from dtrak.models.diffusion import DiffusionModel

        return DiffusionModel
    raise AttributeError(f"module 'dtrak.models' has no attribute {name!r}")


def new_model(settings: Any, shape: tuple[int, int, int], source: str) -> "DiffusionModel":
    """Make the model of a recipe's section `model`, for images of `shape` (C, H, W).

    New weights are drawn from torch's global generator.
    """
    return family_of(settings).new(settings, shape, source)


def save_model(model: "DiffusionModel", folder: Path) -> None:
    """Write a folder that `load_model` and diffusers open: the whole model, or its LoRA."""
    FAMILIES[model.family].save(model, folder)


def load_model(source: str, lora: str | None = None, prompt: str | None = None) -> "DiffusionModel":
    """Open a diffusers folder or a hub id: a DDPM, a Stable Diffusion pipeline, or a LoRA that names its pipeline.

    `lora` is a folder, file or hub id of LoRA weights for the pipeline `source`, and `prompt` the template of its
    images' prompts, such as "a {label} painting".

    >>> import dtrak
    >>> dtrak.load_model("runs/digits/model")
    DiffusionModel from runs/digits/model: UNet2DModel, 176,849 parameters
    images of 8 × 8 pixels, grey; 1,000 timesteps; on cpu
    """
    from dtrak.models.pipelines import local_folder

    folder = local_folder(source)
    if (folder / "recipe.yaml").exists() and (folder / "model").is_dir():
        raise UsageError(f"{source} is a run: its model is {folder / 'model'}")
    return family_that_opens(folder).load(folder, source, lora, prompt)
