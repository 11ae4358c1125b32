"""The models that can be attributed: one small interface over diffusers, which no other part of the package imports.

diffusers takes seconds to import, so that functions import it when they need it: a mistake is reported before.
"""

from pathlib import Path
from types import NoneType
from typing import Any

from dtrak.errors import UsageError, check_known, check_type
from dtrak.models.diffusion import DiffusionModel
from dtrak.models.families import FAMILIES, family_of_pipeline, family_that_opens
from dtrak.models.loras import described_lora
from dtrak.models.pipelines import PRECISIONS, is_lora, local_folder

__all__ = ["DiffusionModel", "load_model", "new_model", "save_model", "wrap"]


def new_model(settings: Any, shape: tuple[int, int, int], source: str) -> DiffusionModel:
    """Make the model of a recipe's section `model`, for images of `shape` (C, H, W).

    New weights are drawn from torch's global generator.
    """
    return FAMILIES[settings.kind].new(settings, shape, source)


def save_model(model: DiffusionModel, folder: Path) -> None:
    """Write a folder that `load_model` and diffusers open: the whole model, or its LoRA."""
    FAMILIES[model.family].save(model, folder)


def load_model(
    source: str | Path, lora: str | Path | None = None, prompt: str | None = None, precision: str | None = None
) -> DiffusionModel:
    """Open a diffusers folder or a hub id: a pipeline of one of the families, or a LoRA that names its pipeline.

    `lora` is a folder, file or hub id of LoRA weights for the pipeline `source`, and `prompt` the template of its
    images' prompts, such as "a {label} painting". `precision` is that of a pipeline's frozen weights: float32, bfloat16
    or float16.

    >>> import dtrak
    >>> dtrak.load_model("runs/digits/model")
    DiffusionModel from runs/digits/model: UNet2DModel, 176,849 parameters
    images of 8 × 8 pixels, grey; 1,000 timesteps; on cpu
    """
    check_type(
        "model", source, (str, Path), "a diffusers folder or a hub id; dtrak.attribute takes objects as they are"
    )
    check_type("lora", lora, (str, Path, NoneType), "a folder, a file or a hub id of LoRA weights")
    check_type("prompt", prompt, (str, NoneType), 'a template such as "a {label} painting"')
    check_known("precision", precision or "float32", list(PRECISIONS))
    source, lora = str(source), None if lora is None else str(lora)

    def check(found: Path) -> None:
        if not is_lora(found):
            family_that_opens(found, source).check(found, source)

    folder = local_folder(source, check)
    if (folder / "recipe.yaml").exists() and (folder / "model").is_dir():
        raise UsageError(f"{source} is a run: its model is {folder / 'model'}")
    if is_lora(folder) and lora is None:
        base, template = described_lora(folder)
        return load_model(base, str(folder), prompt or template, precision)
    family, more = family_that_opens(folder, source), {} if precision is None else {"precision": precision}
    if more and "precision" not in family.settings.model_fields:
        raise UsageError(f"precision {precision}: {source} is not a pipeline with frozen weights")
    return family.load(folder, source, lora, prompt, **more)


def wrap(model: Any, prompt: str | None = None) -> DiffusionModel:
    """Return a model as it is, and a pipeline object of diffusers as a model; refuse anything else."""
    from diffusers import DiffusionPipeline

    if isinstance(model, DiffusionModel):
        return model
    if isinstance(model, DiffusionPipeline):
        wrapped: DiffusionModel = family_of_pipeline(model).wrap(model, f"the {type(model).__name__}", prompt)
        return wrapped
    raise UsageError(
        f"model is a {type(model).__name__}: give a folder, a hub id, a pipeline of diffusers, or a network as "
        "dtrak.DiffusionModel(network, scheduler, shape)"
    )
