"""U-Nets on pixels: diffusers' UNet2DModel, without a condition or with a class, trained as a whole.

A U-Net with `num_class_embeds` takes the class of an image. The names of its classes are in classes.json.
"""

import json
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator, ConfigDict, Field, JsonValue

from dtrak.checks import MOST, OpenFraction, Positive, Section, first_difference, shortened
from dtrak.contracts import Difference, Shape
from dtrak.errors import UsageError
from dtrak.files import whole_folder, write_json
from dtrak.images.images import Images
from dtrak.models.conditions import Classes
from dtrak.models.diffusion import DiffusionModel
from dtrak.models.loras import load_lora
from dtrak.models.memory import Layout, lay_out_network
from dtrak.models.pipelines import INDEX, check_files, load_errors, network_config, read_config, sides_of, whole_weights
from dtrak.models.schedulers import check_schedule, open_scheduler

DROPOUT = 0.1  # the paper's value, used unless a recipe gives another
CLASSES = "classes.json"  # the labels of classes, by their names

LARGEST = 2**16  # no whole number of a U-Net is larger
Channels = Annotated[int, Field(gt=0, le=LARGEST)]
Names = Annotated[list[str], Field(min_length=1, max_length=16)]


class Checked(Section):
    """Bounds of a U-Net's settings: with other numbers, diffusers would divide by zero or take hours to build it."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, JsonValue]

    block_out_channels: Annotated[list[Channels], Field(min_length=1, max_length=16)] | None = None
    down_block_types: Names | None = None
    up_block_types: Names | None = None
    layers_per_block: Annotated[int, Field(gt=0, le=64)] = 1
    norm_num_groups: Channels = 1
    attention_head_dim: Channels | None = None
    attn_norm_num_groups: Channels | None = None
    time_embedding_dim: Channels | None = None
    downsample_padding: Annotated[int, Field(ge=0, le=16)] = 0
    mid_block_scale_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    norm_eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0


def _checked(unet: dict[str, Any]) -> dict[str, Any]:
    """Return the settings unchanged; refuse numbers with which no U-Net can be built."""
    Checked.model_validate(unet)
    for name, value in unet.items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and abs(number) > LARGEST:
                said = f"it must be at most {LARGEST:,} (it says {shortened(number)})"
                raise ValueError(f"model.unet.{name}: {said}")
    return unet


class Schedule(Section):
    """The noise schedule; the fields have the names of diffusers."""

    num_train_timesteps: Annotated[Positive, Field(le=MOST["num_train_timesteps"])] = 1000
    beta_schedule: Literal["linear", "scaled_linear", "squaredcos_cap_v2"] = "linear"
    beta_start: OpenFraction = 1e-4
    beta_end: OpenFraction = 0.02
    prediction_type: Literal["epsilon", "v_prediction", "sample"] = "epsilon"


class DDPMSettings(Section):
    """A U-Net on pixels; `unet` is the configuration of diffusers' UNet2DModel, without size and channels.

    If it has `num_class_embeds`, the U-Net takes the class of an image: the whole number in its column `label`, or the
    place of its name in `classes`.
    """

    kind: Literal["ddpm"] = "ddpm"
    unet: Annotated[dict[str, Any], AfterValidator(_checked)]
    schedule: Schedule = Schedule()
    classes: tuple[str, ...] | None = None  # names of classes, if labels are not numbers


class DDPM:
    """U-Nets on pixels."""

    settings: type[Section] = DDPMSettings
    defaults: Mapping[str, Mapping[str, Any]] = {}
    attributed = "all"
    makes_new_weights = True
    pipelines: tuple[str, ...] = ("DDPMPipeline", "DDIMPipeline", "PNDMPipeline", "ScoreSdeVePipeline")

    def opens(self, folder: Path) -> bool:
        return True  # it is tried last; `check` refuses a folder that does not hold such a U-Net

    def check(self, folder: Path, source: str) -> None:
        network, schedule = parts_in(folder)
        kind = network_config(folder, network, source).get("_class_name", "UNet2DModel")
        check_schedule(read_config(folder, f"{schedule}/scheduler_config.json", source), source)
        if kind != "UNet2DModel":
            raise UsageError(
                f"{source}: its network is a {kind}, not a UNet2DModel, and no {INDEX} names a pipeline for it: "
                "wrap it in dtrak.DiffusionModel"
            )
        for other in sorted(folder.glob("*/config.json")):
            part = other.parent.name
            if part != network and read_config(folder, f"{part}/config.json", source).get("_class_name") != kind:
                raise UsageError(
                    f"{source}: it has {part}/ beside its U-Net, so that the U-Net may not work on pixels: wrap "
                    "the network in dtrak.DiffusionModel"
                )

    def load(self, folder: Path, source: str, lora: str | None, prompt: str | None) -> DiffusionModel:
        from diffusers import UNet2DModel

        if prompt is not None:
            raise UsageError(f"prompt {prompt!r}: {source} takes no prompts")
        self.check(folder, source)
        check_files(folder)
        network, schedule = parts_in(folder)
        with load_errors(source):
            unet = whole_weights(UNet2DModel, folder, network, source)
            config = read_config(folder, f"{schedule}/scheduler_config.json", source)
            scheduler = open_scheduler(folder / schedule, config, source, as_ddpm=True)
        if lora is not None:
            load_lora(unet, lora, source)
        return assemble(unet, scheduler, source, read_config(folder, CLASSES, source, {}))

    def wrap(self, pipeline: Any, source: str, prompt: str | None) -> DiffusionModel:
        """Return the model of a pipeline object."""
        return assemble(pipeline.unet, pipeline.scheduler, source, {})

    def is_conditional(self, settings: Any) -> bool:
        return bool(settings.classes or settings.unet.get("num_class_embeds"))

    def timesteps(self, settings: Any) -> int:
        found: int = settings.schedule.num_train_timesteps
        return found

    def new(self, settings: Any, shape: Shape, source: str) -> DiffusionModel:
        from diffusers import DDPMScheduler, UNet2DModel

        names = {name: label for label, name in enumerate(settings.classes or ())}
        unet = {"num_class_embeds": len(names) or None, "dropout": DROPOUT} | settings.unet
        if unknown := unet.keys() - signature(UNet2DModel).parameters.keys():
            raise UsageError(f"{source}: model.unet.{min(unknown)}: diffusers' UNet2DModel has no such setting")
        channels, height, width = shape
        size = height if height == width else (height, width)
        try:
            network = UNet2DModel(**unet | {"sample_size": size, "in_channels": channels, "out_channels": channels})
            model = assemble(network, DDPMScheduler(**settings.schedule.model_dump()), source, names)
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

    def save(self, model: DiffusionModel, folder: Path) -> None:
        """Write a folder that diffusers' DDPMPipeline opens."""
        from diffusers import DDPMPipeline

        with whole_folder(folder) as temporary:
            DDPMPipeline(unet=model.network, scheduler=model.scheduler).save_pretrained(temporary)
            if names := _class_names(model):
                write_json(temporary / CLASSES, names)

    def check_complete(self, settings: Mapping[str, Any], recipe: str) -> None:
        return

    def check_buildable(self, settings: Any, images: Images, recipe: str) -> None:
        with torch.device("meta"):
            model = self.new(settings, images.shape, recipe)
        if model.conditions is not None:
            model.conditions.check(images)

    def difference(self, model: DiffusionModel, settings: Any, shape: Shape, recipe: str) -> Difference | None:
        if model.family != "ddpm":
            return "the kind", model.family, "ddpm"
        with torch.device("meta"):
            new = self.new(settings, shape, recipe)
        wanted = {"unet": _config(new.network), "schedule": _config(new.scheduler)}
        stored = {"unet": _config(model.network), "schedule": _config(model.scheduler)}
        # A folder may hold settings that diffusers does not know.
        found = {part: {name: stored[part].get(name) for name in names} for part, names in wanted.items()}
        return first_difference(found, wanted)

    def settings_of(self, model: DiffusionModel) -> dict[str, Any]:
        """Return a recipe's section that makes such a model, without the settings that the images decide."""
        from diffusers import UNet2DModel

        unet, schedule, usual = _config(model.network), _config(model.scheduler), _config(UNet2DModel())
        decided = ("sample_size", "in_channels", "out_channels")
        own = {name: value for name, value in unet.items() if name not in decided and value != usual.get(name)}
        made = {
            "kind": "ddpm",
            "unet": {"dropout": unet["dropout"]} | own,
            "schedule": {name: schedule[name] for name in Schedule.model_fields if name in schedule},
        }
        names = _class_names(model)
        return {**made, "classes": sorted(names, key=names.__getitem__)} if names else made

    def lay_out(self, settings: Any, shape: Shape, source: str) -> Layout:
        return lay_out_network(lambda: self.new(settings, shape, source), shape, source)

    def most_prompts(self, settings: Any, images: int, classes: int | None) -> int:
        return 0

    def to_fetch(self, settings: Any, layout: Layout) -> list[str]:
        return []

    def description(self, settings: Any, images: str) -> str:
        widths = settings.unet.get("block_out_channels", ["diffusers’ default"])
        return f"DDPM {images}, U-Net of width {', '.join(map(str, widths))}"


def assemble(unet: Any, scheduler: Any, source: str, names: Mapping[str, int]) -> DiffusionModel:
    """Return the model of a U-Net and a scheduler; `names` are the labels of its classes."""
    config = unet.config
    if kind := config.get("class_embed_type"):
        raise UsageError(
            f"{source}: its U-Net takes classes that are not whole numbers (class_embed_type is {kind!r}): wrap it in "
            "dtrak.DiffusionModel"
        )
    if config.in_channels != config.out_channels and config.out_channels != 2 * config.in_channels:
        raise UsageError(
            f"{source}: its U-Net maps {config.in_channels} channels to {config.out_channels}; they must be equal"
        )
    shape, classes = (config.in_channels, *sides_of(config, source)), config.get("num_class_embeds")
    conditioner = Classes("class_labels", classes, names, source=source) if classes else None
    return DiffusionModel(unet.eval(), scheduler, shape, source, conditioner=conditioner)


def parts_in(folder: Path) -> tuple[str, str]:
    """Return the folders of the network and of the schedule, which the oldest models on the hub have at the top."""
    is_flat = (folder / "config.json").exists() and not (folder / "unet" / "config.json").exists()
    return (".", ".") if is_flat else ("unet", "scheduler")


def _class_names(model: DiffusionModel) -> dict[str, int]:
    return dict(model.conditioner.names) if isinstance(model.conditioner, Classes) else {}


def _config(part: Any) -> dict[str, Any]:
    """Return the settings of a network or a schedule as JSON would store them: lists instead of tuples."""
    config = {name: value for name, value in part.config.items() if not name.startswith("_")}
    return dict(json.loads(json.dumps(config, default=str)))


FAMILY = DDPM()
