"""Unconditional DDPMs: diffusers' UNet2DModel and DDPMScheduler, in diffusers' own folder layout, safetensors only."""

import json
from pathlib import Path
from typing import Any

from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from safetensors import SafetensorError

from dtrak.errors import UsageError
from dtrak.files import whole_folder
from dtrak.models.diffusion import DiffusionModel

WEIGHTS = "diffusion_pytorch_model*.safetensors"


def build(unet: dict[str, Any], schedule: dict[str, Any], source: str) -> DiffusionModel:
    """A new model with random weights (drawn from torch's global generator) from the two configurations."""
    try:
        return _assemble(UNet2DModel(**unet), DDPMScheduler(**schedule), source)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{source}: no U-Net can be built from its model section: {error}") from error


def save(model: DiffusionModel, folder: Path) -> None:
    """Write a folder that diffusers' DDPMPipeline opens."""
    with whole_folder(folder) as temporary:
        DDPMPipeline(unet=model.network, scheduler=model.scheduler).save_pretrained(temporary, safe_serialization=True)


def load(source: str) -> DiffusionModel:
    """Open a pipeline folder, or a hub id."""
    folder = Path(source)
    if folder.exists():
        _check_folder(folder)
    elif source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise UsageError(f"no model at {source!r}: give a diffusers folder (with unet/ and scheduler/) or a hub id")
    try:
        unet = UNet2DModel.from_pretrained(source, subfolder="unet", use_safetensors=True, low_cpu_mem_usage=False)
        scheduler = DDPMScheduler.from_pretrained(source, subfolder="scheduler")
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        where = "the folder is damaged" if folder.exists() else "it is neither a folder here nor a model on the hub"
        raise UsageError(f"cannot load the model {source!r}: {where} ({reason[:300]})") from error
    return _assemble(unet, scheduler, source)


def _assemble(unet: UNet2DModel, scheduler: DDPMScheduler, source: str) -> DiffusionModel:
    config = unet.config
    if config.class_embed_type or config.num_class_embeds:
        raise UsageError(f"{source}: its U-Net is class-conditional; only unconditional ones are supported")
    if config.in_channels != config.out_channels:
        raise UsageError(
            f"{source}: its U-Net maps {config.in_channels} channels to {config.out_channels}; they must be equal"
        )
    size = config.sample_size
    height, width = (size, size) if isinstance(size, int) else size
    unet.eval()
    return DiffusionModel(unet, scheduler, (config.in_channels, height, width), source)


def _check_folder(folder: Path) -> None:
    """Say what a model folder lacks before diffusers stumbles over it."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file: give the folder of a diffusers model (with unet/ and scheduler/)")
    if (folder / "model" / "unet").is_dir():
        raise UsageError(f"{folder} is a run: its model is {folder / 'model'}")
    for needed in ("unet/config.json", "scheduler/scheduler_config.json"):
        if not (folder / needed).is_file():
            raise UsageError(f"{folder} is not a diffusers model: it has no {needed}")
        try:
            json.loads((folder / needed).read_text())
        except ValueError as error:
            raise UsageError(f"{folder / needed} is not JSON: {error}") from error
    if not list((folder / "unet").glob(WEIGHTS)):
        raise UsageError(f"{folder} has no weights: unet/diffusion_pytorch_model.safetensors is missing")
