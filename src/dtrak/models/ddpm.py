"""U-Nets on pixels: diffusers' UNet2DModel and DDPMScheduler, in the folder layout of diffusers.

A U-Net with `num_class_embeds` takes the class of an image. The names of its classes are in classes.json.
"""

import json
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import diffusers
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

from dtrak.errors import UsageError
from dtrak.files import whole_folder, write_json
from dtrak.models.classes import Classes
from dtrak.models.diffusion import DiffusionModel
from dtrak.models.exploding import is_exploding
from dtrak.models.loras import load_lora
from dtrak.models.pipelines import INDEX, check_files, check_schedule, load_errors, read_config, whole_weights
from dtrak.models.settings import Schedule

# The folders of the network and of the schedule; the oldest models on the hub have both at the top.
LAYOUTS = (("unet", "scheduler"), (".", "."))

DROPOUT = 0.1  # the paper's value, used unless a recipe gives another


CLASSES = "classes.json"  # the labels of classes, by their names
OTHER_CLASSES = ("class_embed_type",)  # settings of U-Nets whose classes are not whole numbers


def new(
    unet: dict[str, Any],
    schedule: dict[str, Any],
    shape: tuple[int, int, int],
    source: str,
    classes: Sequence[str] | None = None,
) -> DiffusionModel:
    """Make a model for images of `shape` (C, H, W) with random weights, drawn from torch's global generator."""
    if classes:
        unet = {"num_class_embeds": len(classes)} | unet
    if unknown := unet.keys() - signature(UNet2DModel).parameters.keys():
        raise UsageError(f"{source}: model.unet.{min(unknown)}: diffusers' UNet2DModel has no such setting")
    channels, height, width = shape
    size = height if height == width else (height, width)
    fitted = {"dropout": DROPOUT} | unet | {"sample_size": size, "in_channels": channels, "out_channels": channels}
    try:
        network = UNet2DModel(**fitted)
        names = {name: label for label, name in enumerate(classes or ())}
        model = assemble(network, DDPMScheduler(**schedule), source, names)
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
        if isinstance(model.conditioner, Classes) and model.conditioner.names:
            write_json(temporary / CLASSES, dict(model.conditioner.names))


def load(folder: Path, source: str, lora: str | None = None, prompt: str | None = None) -> DiffusionModel:
    """Load the model in a pipeline's folder; `source` is what the user typed."""
    if prompt is not None:
        raise UsageError(f"prompt {prompt!r}: {source} takes no prompts")
    unet_folder, scheduler_folder = _find_parts(folder, source)
    check_files(folder)
    with load_errors(source):
        unet = whole_weights(UNet2DModel, unet_folder, source)
        scheduler = _load_scheduler(scheduler_folder, source)
    if lora is not None:
        load_lora(unet, lora, source)
    names = read_config(folder, Path(CLASSES), source) if (folder / CLASSES).exists() else {}
    return assemble(unet, scheduler, source, names)


def _load_scheduler(folder: Path, source: str) -> Any:
    """Load a scheduler: as a DDPM's, if it has β; else of its own class."""
    config = read_config(folder, Path("scheduler_config.json"), source)
    kind = str(config.get("_class_name", "DDPMScheduler"))
    is_other = "FlowMatch" in kind or config.get("use_flow_sigmas") or is_exploding(kind)
    return (getattr(diffusers, kind) if is_other else DDPMScheduler).from_pretrained(folder)


def check(folder: Path, source: str) -> None:
    """Refuse a folder that is incomplete or not supported; no weights are read."""
    _find_parts(folder, source)


def assemble(unet: Any, scheduler: Any, source: str, names: Mapping[str, int] | None = None) -> DiffusionModel:
    """Return the model of a U-Net and a scheduler; `names` are the labels of its classes."""
    config = unet.config
    for setting in OTHER_CLASSES:
        if config.get(setting):
            raise UsageError(
                f"{source}: its U-Net takes classes that are not whole numbers ({setting} is {config[setting]!r}): "
                "wrap it in dtrak.DiffusionModel"
            )
    if config.in_channels != config.out_channels and config.out_channels != 2 * config.in_channels:
        raise UsageError(
            f"{source}: its U-Net maps {config.in_channels} channels to {config.out_channels}; they must be equal"
        )
    if config.sample_size is None:
        raise UsageError(f"{source}: the config.json of its U-Net does not give the sample_size of its images")
    size = config.sample_size
    height, width = (size, size) if isinstance(size, int) else size
    classes = config.get("num_class_embeds")
    conditioner = Classes("class_labels", classes, names or {}, source=source) if classes else None
    unet.eval()
    return DiffusionModel(unet, scheduler, (config.in_channels, height, width), source, conditioner=conditioner)


def _find_parts(folder: Path, source: str) -> tuple[Path, Path]:
    """Return the folders of the network and of the schedule; refuse a folder that is incomplete or not supported."""
    network, schedule = next((parts for parts in LAYOUTS if (folder / parts[0] / "config.json").exists()), LAYOUTS[0])
    config = read_config(folder, Path(network, "config.json"), source)
    check_schedule(folder, Path(schedule), source)
    kind = config.get("_class_name", "UNet2DModel")
    if kind != "UNet2DModel":
        raise UsageError(
            f"{source}: its network is a {kind}, not a UNet2DModel, and no {INDEX} names a pipeline for it: "
            "wrap it in dtrak.DiffusionModel"
        )
    for other in sorted(folder.glob("*/config.json")):
        part = other.parent.name
        if part != network and read_config(folder, Path(part, other.name), source).get("_class_name") != kind:
            raise UsageError(
                f"{source}: it has {part}/ beside its U-Net, so that the U-Net may not work on pixels: wrap "
                "the network in dtrak.DiffusionModel"
            )
    return folder / network, folder / schedule


def recipe_settings(model: DiffusionModel) -> dict[str, Any]:
    """Return the settings of a recipe that makes such a model, without those that the images decide."""
    found, usual = model_settings(model), _config(UNet2DModel())
    decided = ("sample_size", "in_channels", "out_channels")
    unet = {name: value for name, value in found["unet"].items() if name not in decided and value != usual.get(name)}
    schedule = {name: found["schedule"][name] for name in Schedule.model_fields if name in found["schedule"]}
    made: dict[str, Any] = {"unet": {"dropout": found["unet"]["dropout"]} | unet, "schedule": schedule}
    if isinstance(model.conditioner, Classes) and model.conditioner.names:
        made["classes"] = sorted(model.conditioner.names, key=model.conditioner.names.__getitem__)
    return made


def model_settings(model: DiffusionModel) -> dict[str, dict[str, Any]]:
    """Return the settings of a model's network and schedule, as JSON would store them: lists instead of tuples."""
    return {"unet": _config(model.network), "schedule": _config(model.scheduler)}


def _config(part: Any) -> dict[str, Any]:
    config = {name: value for name, value in part.config.items() if not name.startswith("_")}
    return dict(json.loads(json.dumps(config, default=str)))
