"""The families of models. Each family is one class that opens, makes, saves, checks and describes its models; no other
code asks which family a model belongs to.

Networks are imported where they are needed: diffusers takes seconds to import, and a mistake in a recipe should be
reported before.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dtrak.errors import UsageError
from dtrak.models.settings import DDPMSettings, Shape, StableDiffusionSettings
from dtrak.registry import Registry
from dtrak.sections import Section, first_difference

if TYPE_CHECKING:
    from dtrak.images.images import Images
    from dtrak.models.diffusion import DiffusionModel
    from dtrak.models.layout import Layout

Difference = tuple[str, Any, Any]  # between two models: the name of a setting, and its value in each model


class ModelFamily(Protocol):
    """Models of one kind. The argument `settings` of a method is an object of the family's class `settings`."""

    settings: type[Section]  # the class of a recipe's section `model`, whose field `kind` is the family's name
    defaults: Mapping[str, Mapping[str, Any]]  # for a recipe's other sections, if the family needs its own
    takes_prompts: bool
    attributed: str  # describes the parameters that are trained and attributed
    makes_new_weights: bool  # whether all weights of a new model are new; else some must exist already

    def opens(self, folder: Path) -> bool:
        """Tell whether a folder holds a model of this family."""

    def load(self, folder: Path, source: str, lora: str | None, prompt: str | None) -> "DiffusionModel":
        """Load the model in a folder; `source` is what the user typed."""

    def timesteps(self, settings: Any) -> int:
        """Return T, the length of the noise schedule."""

    def new(self, settings: Any, shape: Shape, source: str) -> "DiffusionModel":
        """Make a model for images of a shape; its new weights are drawn from torch's global generator."""

    def save(self, model: "DiffusionModel", folder: Path) -> None:
        """Write a folder that `load` and diffusers open."""

    def check_complete(self, settings: Mapping[str, Any], recipe: str) -> None:
        """Refuse a recipe's section `model` that lacks what the user has to give, before it is validated."""

    def check_buildable(self, settings: Any, images: "Images", recipe: str) -> None:
        """Refuse settings from which no model for these images can be built; no weights are made or read."""

    def difference(self, model: "DiffusionModel", settings: Any, shape: Shape, recipe: str) -> Difference | None:
        """Return the first setting in which a model differs from the recipe's: ("unet.dropout", 0.0, 0.1)."""

    def lay_out(self, settings: Any, shape: Shape, source: str) -> "Layout":
        """Return the sizes of the model without making it."""

    def most_prompts(self, settings: Any, images: int, classes: int | None) -> int:
        """Return the largest possible number of different prompts, including the empty one."""

    def to_fetch(self, settings: Any, layout: "Layout") -> list[str]:
        """Describe what has to be downloaded first."""

    def description(self, settings: Any, images: str) -> str:
        """Describe a model for such images."""


class DDPM:
    """Unconditional U-Nets on pixels."""

    settings: type[Section] = DDPMSettings
    defaults: Mapping[str, Mapping[str, Any]] = {}
    takes_prompts = False
    attributed = "all"
    makes_new_weights = True

    def opens(self, folder: Path) -> bool:
        return True  # it is tried last; `load` refuses a folder that does not hold a DDPM

    def load(self, folder: Path, source: str, lora: str | None, prompt: str | None) -> "DiffusionModel":
        from dtrak.models import ddpm

        for option, value in {"lora": lora, "prompt": prompt}.items():
            if value is not None:
                raise UsageError(f"{option} {value!r}: {source} is not a Stable Diffusion pipeline")
        return ddpm.load(folder, source)

    def timesteps(self, settings: DDPMSettings) -> int:
        return settings.schedule.num_train_timesteps

    def new(self, settings: DDPMSettings, shape: Shape, source: str) -> "DiffusionModel":
        from dtrak.models import ddpm

        return ddpm.new(settings.unet, settings.schedule.model_dump(), shape, source)

    def save(self, model: "DiffusionModel", folder: Path) -> None:
        from dtrak.models import ddpm

        ddpm.save(model, folder)

    def check_complete(self, settings: Mapping[str, Any], recipe: str) -> None:
        return

    def check_buildable(self, settings: DDPMSettings, images: "Images", recipe: str) -> None:
        import torch

        with torch.device("meta"):
            self.new(settings, images.shape, recipe)

    def difference(
        self, model: "DiffusionModel", settings: DDPMSettings, shape: Shape, recipe: str
    ) -> Difference | None:
        import torch

        from dtrak.models import ddpm

        if model.prompts is not None:
            return "the kind", "Stable Diffusion", "a DDPM"
        with torch.device("meta"):
            wanted = ddpm.model_settings(self.new(settings, shape, recipe))
        stored = ddpm.model_settings(model)
        # A folder may hold settings that diffusers does not know.
        found = {part: {name: stored[part].get(name) for name in names} for part, names in wanted.items()}
        return first_difference(found, wanted)

    def lay_out(self, settings: DDPMSettings, shape: Shape, source: str) -> "Layout":
        from dtrak.models.layout import lay_out_ddpm

        return lay_out_ddpm(settings.unet, settings.schedule.model_dump(), shape, source)

    def most_prompts(self, settings: DDPMSettings, images: int, classes: int | None) -> int:
        return 0

    def to_fetch(self, settings: DDPMSettings, layout: "Layout") -> list[str]:
        return []

    def description(self, settings: DDPMSettings, images: str) -> str:
        widths = settings.unet.get("block_out_channels", ["diffusers’ default"])
        return f"DDPM {images}, U-Net of width {', '.join(map(str, widths))}"


class StableDiffusion:
    """Stable Diffusion 1 and 2, and their LoRAs."""

    settings: type[Section] = StableDiffusionSettings
    defaults: Mapping[str, Mapping[str, Any]] = {  # the paper's values, where they differ from those of its DDPMs
        "training": {"betas": (0.9, 0.999)},
        "generation": {"guidance": 7.5},
    }
    takes_prompts = True
    attributed = "those of the LoRA"
    makes_new_weights = False

    def opens(self, folder: Path) -> bool:
        from dtrak.models.pipelines import is_lora, is_pipeline

        return is_lora(folder) or is_pipeline(folder)

    def load(self, folder: Path, source: str, lora: str | None, prompt: str | None) -> "DiffusionModel":
        from dtrak.models import stable_diffusion
        from dtrak.models.pipelines import is_lora

        if is_lora(folder) and lora is None:
            return stable_diffusion.load_lora(folder, prompt)
        return stable_diffusion.load(folder, source, lora, prompt)

    def timesteps(self, settings: StableDiffusionSettings) -> int:
        return 1000  # the same for every Stable Diffusion

    def new(self, settings: StableDiffusionSettings, shape: Shape, source: str) -> "DiffusionModel":
        from dtrak.models import stable_diffusion

        return stable_diffusion.new(settings.base, settings.lora, settings.prompt, shape, source)

    def save(self, model: "DiffusionModel", folder: Path) -> None:
        from dtrak.models import stable_diffusion

        if not model.has_lora:
            raise UsageError(f"{model.source}: of a Stable Diffusion pipeline, only a LoRA can be saved")
        stable_diffusion.save(model, folder)

    def check_complete(self, settings: Mapping[str, Any], recipe: str) -> None:
        if "base" in settings and settings["base"] is None:
            raise UsageError(f"{recipe} names no Stable Diffusion to start from: give a pipeline's folder as --base")

    def check_buildable(self, settings: StableDiffusionSettings, images: "Images", recipe: str) -> None:
        from dtrak.models import stable_diffusion
        from dtrak.models.prompts import check_columns

        check_columns(settings.prompt, images, f"{recipe}: model.prompt")
        stable_diffusion.check(settings.base, settings.lora, images.shape, images.source, recipe)

    def difference(
        self, model: "DiffusionModel", settings: StableDiffusionSettings, shape: Shape, recipe: str
    ) -> Difference | None:
        from dtrak.models import stable_diffusion

        if model.prompts is None or not model.has_lora:
            kind = "a DDPM" if model.prompts is None else "Stable Diffusion without a LoRA"
            return "the kind", kind, "Stable Diffusion with a LoRA"
        found = {"base": model.base, "prompt": model.prompts.template, **stable_diffusion.lora_settings(model.network)}
        wanted = {
            "base": stable_diffusion.full_name(settings.base),
            "prompt": settings.prompt,
            **stable_diffusion.new_lora_settings(settings.lora, model.network, recipe),
        }
        return first_difference(found, wanted)

    def lay_out(self, settings: StableDiffusionSettings, shape: Shape, source: str) -> "Layout":
        from dtrak.models.layout import lay_out_stable_diffusion

        return lay_out_stable_diffusion(settings.base, settings.lora, shape, source)

    def most_prompts(self, settings: StableDiffusionSettings, images: int, classes: int | None) -> int:
        from dtrak.models.prompts import fields_of

        one_per_class = {*fields_of(settings.prompt)} <= {"label"}
        return 1 + (classes if one_per_class and classes is not None else images)

    def to_fetch(self, settings: StableDiffusionSettings, layout: "Layout") -> list[str]:
        if Path(settings.base).is_dir():
            return []
        if layout.is_assumed:
            return [f"Missing: {settings.base} could not be looked up: its sizes are taken to be Stable Diffusion 1's"]
        return [f"{settings.base} will be downloaded, unless it was before"]

    def description(self, settings: StableDiffusionSettings, images: str) -> str:
        rank, prompt = settings.lora.rank, settings.prompt
        return f"Stable Diffusion {images}, {settings.base} with a LoRA of rank {rank}, prompts “{prompt}”"


FAMILIES: Registry[ModelFamily] = Registry(
    "kind of model", "dtrak.models", {"ddpm": DDPM(), "stable-diffusion": StableDiffusion()}
)


def family_of(settings: Any) -> ModelFamily:
    """Return the family of a recipe's section `model`."""
    return FAMILIES.choose(settings.kind)


def family_that_opens(folder: Path) -> ModelFamily:
    """Return the family of the model in a folder; families of other packages are tried first, `ddpm` last."""
    built_in = ("stable-diffusion", "ddpm")
    names = [*(name for name in FAMILIES if name not in built_in), *built_in]
    return next(FAMILIES[name] for name in names if FAMILIES[name].opens(folder))
