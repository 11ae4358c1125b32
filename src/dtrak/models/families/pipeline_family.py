"""Latent models in pipelines of diffusers, which are fine-tuned by a LoRA: what all such families share.

A family is a subclass in a file of its own. It names its pipelines and says how the network is called, how prompts are
encoded, and which shapes that gives.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtrak.checks import Section, first_difference
from dtrak.contracts import Difference
from dtrak.errors import UsageError
from dtrak.files import full_name
from dtrak.models.settings import PipelineSettings, Shape

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dtrak.images.images import Images
    from dtrak.models.adapters import Adapter
    from dtrak.models.conditions import Condition, Conditioner
    from dtrak.models.diffusion import DiffusionModel
    from dtrak.models.layout import Layout

DIFFUSERS, TRANSFORMERS = "diffusers", "transformers"


class PipelineFamily:
    """A network on latents that takes prompts or classes."""

    # What a subclass says.
    kind: str  # the name in recipes
    title: str  # the name for people
    pipelines: tuple[str, ...]  # the classes of diffusers that it opens; the first one saves LoRAs
    part = "transformer"  # the name of the network in the pipeline
    usual: Mapping[str, tuple[str, str]] = {}  # the parts of a pipeline whose folder has no model_index.json
    settings: type[Section] = PipelineSettings

    # What all have in common.
    defaults: Mapping[str, Mapping[str, Any]] = {  # the paper's values, where they differ from those of its DDPMs
        "training": {"betas": (0.9, 0.999)},
        "generation": {"guidance": 7.5},
    }
    attributed = "those of the LoRA"
    makes_new_weights = False

    def adapter(self, pipeline: Any) -> "Adapter":
        """Return the function that calls the network."""
        raise NotImplementedError

    def encode(self, pipeline: Any, texts: list[str], device: "torch.device") -> "Condition":
        """Encode prompts as the pipeline does."""
        raise NotImplementedError

    def shapes(self, network: Any) -> dict[str, "Tensor"]:
        """Return a condition of one image, filled with zeros, on the current device."""
        raise NotImplementedError

    def without(self, pipeline: Any, device: "torch.device") -> "Condition":
        """Return the condition that guidance compares with: that of an empty prompt."""
        return self.encode(pipeline, [""], device)

    def shape(self, network: Any) -> Shape:
        """Return (C, H, W) of the latents that a network was made for."""
        size = network.config.sample_size
        height, width = (size, size) if isinstance(size, int) else size
        return network.config.in_channels, height, width

    def multiple(self, network: Any) -> int | None:
        """Return the number of which the sides of other latents must be multiples; None if no others are possible."""
        if "block_out_channels" in network.config:
            return int(2 ** (len(network.config.block_out_channels) - 1))
        return int(network.config.patch_size)

    def autoencoder(self, pipeline: Any) -> Any:
        return pipeline.vae

    def conditioner(
        self, pipeline: Any, load: Any, large: bool, prompt: str | None, source: str
    ) -> "Conditioner | None":
        """Return what makes the conditions; `load` opens the text encoders."""
        from dtrak.models.prompts import Prompts
        from dtrak.models.text_encoders import PipelineText

        return Prompts(PipelineText(load, self.encode, self.without, large), prompt)

    # How a folder becomes a model.
    def opens(self, folder: Path) -> bool:
        from dtrak.models.pipelines import pipeline_class

        kind = pipeline_class(folder, str(folder))
        if kind is None and self.usual:
            return all((folder / name).is_dir() for name in self.usual)
        return kind in self.pipelines

    def check(self, folder: Path, source: str) -> None:
        from dtrak.models.pipelines import check_schedule, read_config

        read_config(folder, Path(self.part, "config.json"), source)
        check_schedule(folder, Path("scheduler"), source)

    def load(
        self, folder: Path, source: str, lora: str | None, prompt: str | None, precision: str = "float32"
    ) -> "DiffusionModel":
        from dtrak.models import loras, opening
        from dtrak.models.pipelines import load_errors

        self.check(folder, source)
        if lora is not None:
            loras.local_lora(lora)  # refuses one that is not there, before gigabytes are read
        with load_errors(source):
            parts, kind = opening.parts_of(folder, source, self.usual), self._pipeline_class(folder)
        together = lora is not None and loras.touches_text(lora)
        pipeline = opening.open_pipeline(kind, folder, source, parts, precision, None if together else False)
        network = getattr(pipeline, self.part)
        if lora is not None:
            loras.load_lora(network, lora, source, pipeline)
        load, large = (
            ((lambda: pipeline), False) if together else opening.text_loader(kind, folder, source, parts, precision)
        )
        model = self._model(pipeline, load, large, prompt, source)
        if prompt is not None and model.prompts is None:
            raise UsageError(f"prompt {prompt!r}: {source} takes no prompts")
        return model if lora is None else replace(model, source=lora, base=source)

    def wrap(self, pipeline: Any, source: str, prompt: str | None) -> "DiffusionModel":
        """Return the model of a pipeline object."""
        return self._model(pipeline, lambda: pipeline, False, prompt, source)

    def _model(self, pipeline: Any, load: Any, large: bool, prompt: str | None, source: str) -> "DiffusionModel":
        from dtrak.models.autoencoder import Autoencoder
        from dtrak.models.diffusion import DiffusionModel
        from dtrak.models.noise_process import as_latent

        network, autoencoder = getattr(pipeline, self.part), self.autoencoder(pipeline)
        autoencoder.requires_grad_(False).eval()
        return DiffusionModel(
            network.eval(),
            as_latent(pipeline.scheduler),
            self.shape(network),
            source,
            Autoencoder(autoencoder),
            self.conditioner(pipeline, load, large, prompt, source),
            family=self.kind,
            adapter=self.adapter(pipeline),
            multiple=self.multiple(network),
        )

    def _pipeline_class(self, folder: Path | None = None) -> Any:
        import diffusers

        from dtrak.models.pipelines import pipeline_class

        found = None if folder is None else pipeline_class(folder, str(folder))
        return getattr(diffusers, found if found in self.pipelines else self.pipelines[0])

    # How a recipe becomes a model.
    def is_conditional(self, settings: PipelineSettings) -> bool:
        return True

    def timesteps(self, settings: PipelineSettings) -> int:
        return 1000  # the same for every pipeline

    def new(self, settings: PipelineSettings, shape: Shape, source: str) -> "DiffusionModel":
        from dtrak.models.loras import add_lora
        from dtrak.models.pipelines import local_folder

        base = settings.base
        folder = local_folder(base, lambda found: self.check(found, base))
        self._check_base(folder, settings)
        model = self.load(folder, base, None, settings.prompt, settings.precision).fitted_to(shape)
        add_lora(model.network, settings.lora, source)
        model.network.eval()
        return replace(model, source=source, base=full_name(base))

    def save(self, model: "DiffusionModel", folder: Path) -> None:
        from dtrak.models.loras import save_lora

        if not model.has_lora:
            raise UsageError(f"{model.source}: of a {self.title} pipeline, only a LoRA can be saved")
        save_lora(model, self._pipeline_class(), self.part, folder)

    def check_complete(self, settings: Mapping[str, Any], recipe: str) -> None:
        if "base" in settings and settings["base"] is None:
            raise UsageError(f"{recipe} names no {self.title} to start from: give a pipeline's folder as --base")

    def check_buildable(self, settings: PipelineSettings, images: "Images", recipe: str) -> None:
        import torch

        from dtrak.models.loras import add_lora
        from dtrak.models.opening import on_meta, parts_of
        from dtrak.models.pipelines import local_configs
        from dtrak.models.prompts import check_columns

        if settings.prompt is not None:
            check_columns(settings.prompt, images, f"{recipe}: model.prompt")
        configs = local_configs(settings.base)
        if configs is None:
            return
        self._check_base(configs, settings)
        self.check(configs, settings.base)
        with torch.device("meta"):
            parts = parts_of(configs, settings.base, self.usual)
            made = on_meta(configs, settings.base, {name: one for name, one in parts.items() if "text" not in name})
            model = self.of_parts(made, settings)
            add_lora(model.network, settings.lora, recipe)
        replace(model, source=recipe).fitted_to(images.shape).check_fits(images.shape, images.source)
        if settings.prompt is None and model.conditions is not None:
            model.conditions.check(images)

    def _check_base(self, folder: Path, settings: PipelineSettings) -> None:
        from dtrak.models.pipelines import pipeline_class, refuse_pipeline

        if (folder / "model_index.json").exists() and not self.opens(folder):
            refuse_pipeline(settings.base, pipeline_class(folder, settings.base), self.pipelines)

    def of_parts(self, parts: Mapping[str, Any], settings: PipelineSettings) -> "DiffusionModel":
        """Return the model of parts that were made from their settings alone, without text encoders."""
        from types import SimpleNamespace

        pipeline = SimpleNamespace(**parts, config={}, labels={})
        return self._model(pipeline, lambda: None, True, settings.prompt, settings.base)

    def difference(
        self, model: "DiffusionModel", settings: PipelineSettings, shape: Shape, recipe: str
    ) -> Difference | None:
        from dtrak.models.loras import lora_settings, new_lora_settings

        if model.family != self.kind or not model.has_lora:
            return "the kind", f"{model.family}{_with_lora(model.has_lora)}", f"{self.kind}{_with_lora(True)}"
        template = None if model.prompts is None else model.prompts.template
        found = {"base": model.base, "prompt": template, **lora_settings(model.network)}
        wanted = {
            "base": full_name(settings.base),
            "prompt": settings.prompt,
            **new_lora_settings(settings.lora, model.network, recipe),
        }
        return first_difference(found, wanted)

    def settings_of(self, model: "DiffusionModel") -> dict[str, Any]:
        made: dict[str, Any] = {"kind": self.kind, "base": full_name(model.base or model.source)}
        if model.has_lora:
            from dtrak.models.loras import ADAPTER

            network: Any = model.network
            config = network.peft_config[ADAPTER]
            targets = sorted(config.target_modules)
            made["lora"] = {"rank": config.r, "alpha": int(config.lora_alpha), "targets": targets}
        else:
            made["lora"] = {"rank": 16, "alpha": 16}
        if model.prompts is not None:
            made["prompt"] = model.prompts.template or "{caption}"
        return made

    # What it would take.
    def lay_out(self, settings: PipelineSettings, shape: Shape, source: str) -> "Layout":
        from dtrak.models.layout import lay_out_pipeline
        from dtrak.models.pipelines import local_configs

        configs = local_configs(settings.base)
        if configs is None:
            return self.lay_out_assumed(settings, shape, source)
        self._check_base(configs, settings)
        self.check(configs, settings.base)
        return lay_out_pipeline(self, configs, settings, shape, source)

    def lay_out_assumed(self, settings: PipelineSettings, shape: Shape, source: str) -> "Layout":
        """Return the sizes of a pipeline that cannot be looked up."""
        raise UsageError(
            f"{settings.base} could not be looked up: give the folder of a {self.title} pipeline as --base"
        )

    def most_prompts(self, settings: PipelineSettings, images: int, classes: int | None) -> int:
        from dtrak.models.prompts import fields_of

        one_per_class = settings.prompt is None or {*fields_of(settings.prompt)} <= {"label"}
        return 1 + (classes if one_per_class and classes is not None else images)

    def to_fetch(self, settings: PipelineSettings, layout: "Layout") -> list[str]:
        if Path(settings.base).is_dir():
            return []
        if layout.is_assumed:
            return [f"Missing: {settings.base} could not be looked up: its sizes are taken to be Stable Diffusion 1's"]
        return [f"{settings.base} will be downloaded, unless it was before"]

    def description(self, settings: PipelineSettings, images: str) -> str:
        prompts = "" if settings.prompt is None else f", prompts “{settings.prompt}”"
        return f"{self.title} {images}, {settings.base} with a LoRA of rank {settings.lora.rank}{prompts}"


def _with_lora(has_lora: bool) -> str:
    return " with a LoRA" if has_lora else " without a LoRA"
