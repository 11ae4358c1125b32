"""Latent models in pipelines of diffusers, which are fine-tuned by a LoRA: what all such families share.

A family is a subclass in a file of its own. It names its pipelines and their classes, and says how the network is
called, how prompts are encoded, and which shapes that gives.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from dtrak.checks import Fraction, Positive, Section, first_difference
from dtrak.contracts import Difference, Shape
from dtrak.errors import UsageError
from dtrak.files import full_name
from dtrak.fingerprints import Facts
from dtrak.images.images import Images
from dtrak.models import loras
from dtrak.models.autoencoder import Autoencoder
from dtrak.models.conditions import Adapter, Condition, Conditioner, plain
from dtrak.models.diffusion import DiffusionModel
from dtrak.models.memory import Layout, lay_out_pipeline
from dtrak.models.pipelines import (
    INDEX,
    PRECISIONS,
    TEXT,
    load_errors,
    local_configs,
    local_folder,
    network_config,
    on_meta,
    open_pipeline,
    parts_of,
    pipeline_class,
    read_config,
    refuse_pipeline,
    sides_of,
    text_loader,
)
from dtrak.models.prompts import PipelineText, Prompts, check_columns, fields_of
from dtrak.models.schedulers import as_latent, check_schedule


class LoRA(Section):
    """Which layers of a frozen network get a trained update of low rank; the fields have the names of peft."""

    rank: Annotated[Positive, Field(le=10**4)]
    alpha: Positive  # the update is scaled by alpha / rank
    dropout: Fraction = 0.0
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("to_q", "to_k", "to_v", "to_out.0")


class PipelineSettings(Section):
    """A pipeline of diffusers, fine-tuned with LoRA."""

    kind: str  # the name of its family
    base: str  # a pipeline's folder, or a hub id
    lora: LoRA
    precision: Literal["float32", "bfloat16", "float16"] = "float32"  # of the frozen weights
    prompt: str | None = None  # a template with the names of columns: "a {label} painting", "{caption}"


class PipelineFamily:
    """A network on latents that takes prompts or classes."""

    # What a subclass says.
    kind: str  # the name in recipes
    title: str  # the name for people
    pipelines: tuple[str, ...]  # the classes of diffusers that it opens; the first one saves LoRAs
    classes: tuple[str, ...]  # of the pipelines' networks; no others are opened
    part, encoder = "transformer", "vae"  # the names of the network and of the autoencoder in the pipeline
    usual: Mapping[str, tuple[str, str]] = {}  # the parts of a pipeline whose folder has no model_index.json
    takes_prompts = True
    guidance: float | None = 7.5  # with which pictures are drawn

    # What all have in common.
    settings: type[Section] = PipelineSettings
    attributed = "those of the LoRA"
    makes_new_weights = False

    @property
    def defaults(self) -> Mapping[str, Mapping[str, Any]]:
        """The paper's values, where they differ from those of its DDPMs."""
        training = {"training": {"betas": (0.9, 0.999)}}
        return training if self.guidance is None else {**training, "generation": {"guidance": self.guidance}}

    def adapter(self, pipeline: Any) -> Adapter:
        """Return the function that calls the network."""
        return plain

    def encode(self, pipeline: Any, texts: list[str], device: torch.device) -> Condition:
        """Encode prompts as the pipeline does."""
        raise NotImplementedError

    def shapes(self, network: Any) -> dict[str, Tensor]:
        """Return a condition of one image, filled with zeros, on the current device."""
        raise NotImplementedError

    def without(self, pipeline: Any, device: torch.device) -> Condition:
        """Return the condition that guidance compares with: that of an empty prompt."""
        return self.encode(pipeline, [""], device)

    def shape(self, network: Any, source: str) -> Shape:
        """Return (C, H, W) of the latents that a network was made for."""
        return network.config.in_channels, *sides_of(network.config, source)

    def multiple(self, network: Any) -> int | None:
        """Return the number of which the sides of other latents must be multiples; None if no others are possible."""
        if "block_out_channels" in network.config:
            return int(2 ** (len(network.config.block_out_channels) - 1))
        return int(network.config.patch_size)

    def conditioner(
        self, pipeline: Any, load: Any, stored: Callable[[], Facts] | None, prompt: str | None, source: str
    ) -> Conditioner | None:
        """Return what makes the conditions; `load` opens text encoders, and `stored` are the facts of large ones."""
        return Prompts(PipelineText(load, self.encode, self.without, stored), prompt) if self.takes_prompts else None

    # How a folder becomes a model.
    def opens(self, folder: Path) -> bool:
        kind = pipeline_class(folder, str(folder))
        if kind is None and self.usual:
            return all((folder / name).is_dir() for name in self.usual)
        return kind in self.pipelines

    def check(self, folder: Path, source: str) -> None:
        network_config(folder, self.part, source)
        check_schedule(read_config(folder, "scheduler/scheduler_config.json", source), source)

    def load(
        self, folder: Path, source: str, lora: str | None, prompt: str | None, precision: str = "float32"
    ) -> DiffusionModel:
        self.check(folder, source)
        if lora is not None:
            loras.local_lora(lora)  # refuses one that is not there, before gigabytes are read
        with load_errors(source):
            parts, kind = parts_of(folder, source, self), self._pipeline_class(folder)
        together = lora is not None and loras.touches_text(lora)
        pipeline = open_pipeline(kind, folder, source, parts, precision, None if together else False)
        if lora is not None:
            loras.load_lora(getattr(pipeline, self.part), lora, source, pipeline)
        load, stored = (lambda: pipeline), None
        if not together:
            load, stored = text_loader(kind, folder, source, parts, precision)
        model = self._model(pipeline, load, stored, prompt, source)
        if prompt is not None and model.prompts is None:
            raise UsageError(f"prompt {prompt!r}: {source} takes no prompts")
        return model if lora is None else replace(model, source=lora, base=source)

    def wrap(self, pipeline: Any, source: str, prompt: str | None) -> DiffusionModel:
        """Return the model of a pipeline object."""
        return self._model(pipeline, lambda: pipeline, None, prompt, source)

    def _model(self, pipeline: Any, load: Any, stored: Any, prompt: str | None, source: str) -> DiffusionModel:
        network, autoencoder = getattr(pipeline, self.part), getattr(pipeline, self.encoder)
        autoencoder.requires_grad_(False).eval()
        return DiffusionModel(
            network.eval(),
            as_latent(pipeline.scheduler),
            self.shape(network, source),
            source,
            Autoencoder(autoencoder),
            self.conditioner(pipeline, load, stored, prompt, source),
            family=self.kind,
            adapter=self.adapter(pipeline),
            multiple=self.multiple(network),
        )

    def _pipeline_class(self, folder: Path | None = None) -> Any:
        import diffusers

        found = None if folder is None else pipeline_class(folder, str(folder))
        return getattr(diffusers, found if found in self.pipelines else self.pipelines[0])

    # How a recipe becomes a model.
    def is_conditional(self, settings: PipelineSettings) -> bool:
        return True

    def timesteps(self, settings: PipelineSettings) -> int:
        return 1000  # the same for every pipeline

    def new(self, settings: PipelineSettings, shape: Shape, source: str) -> DiffusionModel:
        base = settings.base
        folder = local_folder(base, lambda found: self.check(found, base))
        self._check_base(folder, settings)
        model = self.load(folder, base, None, settings.prompt, settings.precision).fitted_to(shape)
        loras.add_lora(model.network, settings.lora, source)
        model.network.eval()
        return replace(model, source=source, base=full_name(base))

    def save(self, model: DiffusionModel, folder: Path) -> None:
        if not model.has_lora:
            raise UsageError(f"{model.source}: of a {self.title} pipeline, only a LoRA can be saved")
        loras.save_lora(model, self._pipeline_class(), self.part, folder)

    def check_complete(self, settings: Mapping[str, Any], recipe: str) -> None:
        if settings.get("base", "") is None:
            raise UsageError(f"{recipe} names no {self.title} to start from: give a pipeline's folder as --base")
        if "base" in settings and self.takes_prompts and settings.get("prompt") is None:
            raise UsageError(f"{recipe}: model.prompt: Field required")

    def check_buildable(self, settings: PipelineSettings, images: Images, recipe: str) -> None:
        if settings.prompt is not None:
            check_columns(settings.prompt, images, f"{recipe}: model.prompt")
        configs = local_configs(settings.base)
        if configs is None:
            return
        with torch.device("meta"):
            model = self._on_meta(self._parts(settings, configs, text=False), settings, images.shape, recipe)
        model.check_fits(images.shape, images.source)
        if settings.prompt is None and model.conditions is not None:
            model.conditions.check(images)

    def _parts(self, settings: PipelineSettings, configs: Path, text: bool = True) -> dict[str, Any]:
        """Make the parts of the base, or all but text encoders, on the current device, without weights."""
        self._check_base(configs, settings)
        self.check(configs, settings.base)
        parts = parts_of(configs, settings.base, self)
        wanted = {name: one for name, one in parts.items() if text or not name.startswith(TEXT)}
        return on_meta(configs, settings.base, wanted)

    def _on_meta(
        self, parts: Mapping[str, Any], settings: PipelineSettings, shape: Shape, source: str
    ) -> DiffusionModel:
        """Return the model of such parts, with a new LoRA."""
        pipeline = SimpleNamespace(**parts, config={}, labels={})
        model = self._model(pipeline, lambda: None, dict, settings.prompt, source).fitted_to(shape)
        model.network.to(PRECISIONS[settings.precision])
        loras.add_lora(model.network, settings.lora, source)
        return model

    def _check_base(self, folder: Path, settings: PipelineSettings) -> None:
        if (folder / INDEX).exists() and not self.opens(folder):
            refuse_pipeline(settings.base, pipeline_class(folder, settings.base), self.pipelines)

    def difference(
        self, model: DiffusionModel, settings: PipelineSettings, shape: Shape, recipe: str
    ) -> Difference | None:
        if model.family != self.kind or not model.has_lora:
            found = f"{model.family} {'with' if model.has_lora else 'without'} a LoRA"
            return "the kind", found, f"{self.kind} with a LoRA"
        template = None if model.prompts is None else model.prompts.template
        return first_difference(
            {"base": model.base, "prompt": template, **loras.lora_settings(model.network)},
            {
                "base": full_name(settings.base),
                "prompt": settings.prompt,
                **loras.new_lora_settings(settings.lora, model.network, recipe),
            },
        )

    def settings_of(self, model: DiffusionModel) -> dict[str, Any]:
        lora: dict[str, Any] = {"rank": 16, "alpha": 16}
        if model.has_lora:
            config: Any = loras.config_of(model.network)
            lora = {"rank": config.r, "alpha": int(config.lora_alpha), "targets": sorted(config.target_modules)}
        made = {"kind": self.kind, "base": full_name(model.base or model.source), "lora": lora}
        return made if model.prompts is None else {**made, "prompt": model.prompts.template or "{caption}"}

    # What it would take.
    def lay_out(self, settings: PipelineSettings, shape: Shape, source: str) -> Layout:
        configs = local_configs(settings.base)

        def new() -> tuple[DiffusionModel, dict[str, Any]]:
            parts = self.assumed_parts(settings) if configs is None else self._parts(settings, configs)
            return self._on_meta(parts, settings, shape, source), parts

        return replace(lay_out_pipeline(new, self.shapes), is_assumed=configs is None)

    def assumed_parts(self, settings: PipelineSettings) -> dict[str, Any]:
        """Make the parts of a pipeline that cannot be looked up."""
        raise UsageError(
            f"{settings.base} could not be looked up: give the folder of a {self.title} pipeline as --base"
        )

    def most_prompts(self, settings: PipelineSettings, images: int, classes: int | None) -> int:
        one_per_class = settings.prompt is None or {*fields_of(settings.prompt)} <= {"label"}
        return 1 + (classes if one_per_class and classes is not None else images)

    def to_fetch(self, settings: PipelineSettings, layout: Layout) -> list[str]:
        if Path(settings.base).is_dir():
            return []
        if layout.is_assumed:
            return [f"Missing: {settings.base} could not be looked up: its sizes are taken to be Stable Diffusion 1's"]
        return [f"{settings.base} will be downloaded, unless it was before"]

    def description(self, settings: PipelineSettings, images: str) -> str:
        prompts = "" if settings.prompt is None else f", prompts “{settings.prompt}”"
        return f"{self.title} {images}, {settings.base} with a LoRA of rank {settings.lora.rank}{prompts}"
