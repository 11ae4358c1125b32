"""Unconditional DDPMs: diffusers' UNet2DModel and DDPMScheduler, in the folder layout of diffusers."""

import json
from inspect import signature
from pathlib import Path
from typing import Any

from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

from dtrak.errors import UsageError
from dtrak.files import whole_folder
from dtrak.models.diffusion import DiffusionModel
from dtrak.models.pipelines import (
    UNCONDITIONAL,
    check_files,
    check_index,
    check_schedule,
    load_errors,
    read_config,
    whole_weights,
)

# The folders of the network and of the schedule; the oldest models on the hub have both at the top.
LAYOUTS = (("unet", "scheduler"), (".", "."))

DROPOUT = 0.1  # the paper's value, used unless a recipe gives another


def new(unet: dict[str, Any], schedule: dict[str, Any], shape: tuple[int, int, int], source: str) -> DiffusionModel:
    """Make a model for images of `shape` (C, H, W) with random weights, drawn from torch's global generator."""
    if unknown := unet.keys() - signature(UNet2DModel).parameters.keys():
        raise UsageError(f"{source}: model.unet.{min(unknown)}: diffusers' UNet2DModel has no such setting")
    channels, height, width = shape
    size = height if height == width else (height, width)
    fitted = {"dropout": DROPOUT} | unet | {"sample_size": size, "in_channels": channels, "out_channels": channels}
    try:
        network = UNet2DModel(**fitted)
        model = _assemble(network, DDPMScheduler(**schedule), source)
    except UsageError:
        raise
    except Exception as error:  # diffusers raises many kinds of errors
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


def load(folder: Path, source: str) -> DiffusionModel:
    """Load the model in a pipeline's folder; `source` is what the user typed."""
    unet_folder, scheduler_folder = _find_parts(folder, source)
    check_files(folder)
    with load_errors(source):
        unet = whole_weights(UNet2DModel, unet_folder, source)
        scheduler = DDPMScheduler.from_pretrained(scheduler_folder)
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


def _find_parts(folder: Path, source: str) -> tuple[Path, Path]:
    """Return the folders of the network and of the schedule; refuse a folder that is incomplete or not supported."""
    check_index(folder, source, UNCONDITIONAL)
    network, schedule = next((parts for parts in LAYOUTS if (folder / parts[0] / "config.json").exists()), LAYOUTS[0])
    config = read_config(folder, Path(network, "config.json"), source)
    check_schedule(folder, Path(schedule), source)
    kind = config.get("_class_name", "UNet2DModel")
    if kind != "UNet2DModel":
        raise UsageError(f"{source}: its network is a {kind}; a UNet2DModel and Stable Diffusion's are supported")
    for other in sorted(folder.glob("*/config.json")):
        part = other.parent.name
        if part != network and read_config(folder, Path(part, other.name), source).get("_class_name") != kind:
            raise UsageError(
                f"{source}: it has {part}/ beside its U-Net, so that the U-Net may not work on pixels: wrap "
                "the network in dtrak.DiffusionModel"
            )
    return folder / network, folder / schedule


def model_settings(model: DiffusionModel) -> dict[str, dict[str, Any]]:
    """Return the settings of a model's network and schedule, as JSON would store them: lists instead of tuples."""
    return {"unet": _config(model.network), "schedule": _config(model.scheduler)}


def _config(part: Any) -> dict[str, Any]:
    config = {name: value for name, value in part.config.items() if not name.startswith("_")}
    return dict(json.loads(json.dumps(config, default=str)))
