"""Unconditional DDPM: diffusers' UNet2DModel and DDPMScheduler, in diffusers' own folder layout, safetensors only."""

import json
from inspect import signature
from pathlib import Path
from typing import Any

from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from huggingface_hub import snapshot_download
from safetensors import SafetensorError

from dtrak.errors import UsageError
from dtrak.files import whole_folder
from dtrak.models.diffusion import DiffusionModel

WEIGHTS = "diffusion_pytorch_model*.safetensors"
# Where a folder has its network and its schedule; the oldest models on the hub have both at the top.
LAYOUTS = (("unet", "scheduler"), (".", "."))

DROPOUT = 0.1  # the paper's, unless a recipe says otherwise


def new(unet: dict[str, Any], schedule: dict[str, Any], shape: tuple[int, int, int], source: str) -> DiffusionModel:
    """A model for images of `shape` (C, H, W) with random weights, drawn from torch's global generator."""
    if unknown := unet.keys() - signature(UNet2DModel).parameters.keys():
        raise UsageError(f"{source}: model.unet.{min(unknown)}: diffusers' UNet2DModel has no such setting")
    channels, height, width = shape
    size = height if height == width else (height, width)
    fitted = {"dropout": DROPOUT} | unet | {"sample_size": size, "in_channels": channels, "out_channels": channels}
    try:
        network = UNet2DModel(**fitted)
        model = _assemble(network, DDPMScheduler(**schedule), source)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{source}: model.unet: no U-Net can be built from it: {error}") from error
    halvings = len(network.config.block_out_channels) - 1
    if height % 2**halvings or width % 2**halvings:
        raise UsageError(
            f"{source}: model.unet.block_out_channels: {halvings + 1} blocks halve the images {halvings} times, "
            f"but {width}×{height} pixels cannot be: give fewer blocks, or data.size a multiple of {2**halvings}"
        )
    return model


def save(model: DiffusionModel, folder: Path) -> None:
    """Write a folder that diffusers' DDPMPipeline opens."""
    with whole_folder(folder) as temporary:
        DDPMPipeline(unet=model.network, scheduler=model.scheduler).save_pretrained(temporary, safe_serialization=True)


def load(source: str) -> DiffusionModel:
    """Open a pipeline folder, or a hub id."""
    folder = Path(source) if Path(source).exists() else _download(source)
    unet_folder, scheduler_folder = _find_parts(folder, source)
    try:
        unet, found = UNet2DModel.from_pretrained(
            unet_folder, use_safetensors=True, low_cpu_mem_usage=False, output_loading_info=True
        )
        scheduler = DDPMScheduler.from_pretrained(scheduler_folder)
    except (OSError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"cannot load the model {source!r}: it is damaged ({reason[:300]})") from error
    # diffusers fills what is missing with random numbers.
    if missing := sorted(found["missing_keys"]):
        raise UsageError(
            f"cannot load the model {source!r}: its weights lack {missing[0]}, which its config.json needs"
        )
    return _assemble(unet, scheduler, source)


def _assemble(unet: UNet2DModel, scheduler: DDPMScheduler, source: str) -> DiffusionModel:
    config = unet.config
    if config.class_embed_type or config.num_class_embeds:
        raise UsageError(f"{source}: its U-Net is class-conditional; only unconditional ones are supported")
    if config.in_channels != config.out_channels:
        raise UsageError(
            f"{source}: its U-Net maps {config.in_channels} channels to {config.out_channels}; they must be equal"
        )
    if config.sample_size is None:
        raise UsageError(f"{source}: the config.json of its U-Net does not give the sample_size of its images")
    size = config.sample_size
    height, width = (size, size) if isinstance(size, int) else size
    unet.eval()
    return DiffusionModel(unet, scheduler, (config.in_channels, height, width), source)


def _download(source: str) -> Path:
    """The folder of a model on the hub."""
    nowhere = f"no model at {source!r}: give a diffusers folder (with unet/ and scheduler/) or a hub id"
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise UsageError(nowhere)
    wanted = [f"{folder}/{name}" for folder in LAYOUTS[0] for name in ("*.json", WEIGHTS)] + ["*.json", WEIGHTS]
    try:
        return Path(snapshot_download(source, allow_patterns=wanted))
    except (OSError, ValueError) as error:
        raise UsageError(f"{nowhere} (the hub: {str(error).splitlines()[0]})") from error


def _find_parts(folder: Path, source: str) -> tuple[Path, Path]:
    """The folders of the network and of the schedule; says what is lacking before diffusers stumbles over it."""
    if not folder.is_dir():
        raise UsageError(f"{source} is a file: give the folder of a diffusers model (with unet/ and scheduler/)")
    if (folder / "model" / "unet").is_dir():
        raise UsageError(f"{source} is a run: its model is {folder / 'model'}")
    network, schedule = next((parts for parts in LAYOUTS if (folder / parts[0] / "config.json").exists()), LAYOUTS[0])
    config = _read_config(folder, Path(network, "config.json"), source)
    _read_config(folder, Path(schedule, "scheduler_config.json"), source)
    kind = config.get("_class_name", "UNet2DModel")
    if kind != "UNet2DModel":
        raise UsageError(f"{source}: its network is a {kind}; only the unconditional UNet2DModel is supported")
    if not list((folder / network).glob(WEIGHTS)):
        raise UsageError(f"{source} has no weights: {Path(network, WEIGHTS.replace('*', ''))} is missing")
    return folder / network, folder / schedule


def _read_config(folder: Path, name: Path, source: str) -> dict[str, Any]:
    if not (folder / name).is_file():
        raise UsageError(f"{source} is not a diffusers model: it has no {name}")
    try:
        return dict(json.loads((folder / name).read_text()))
    except (ValueError, TypeError) as error:
        raise UsageError(f"{folder / name} is not a JSON object: {error}") from error
