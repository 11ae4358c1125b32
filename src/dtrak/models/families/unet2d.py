"""U-Nets on pixels (diffusers' UNet2DModel), without a condition or with a class. They are trained as a whole."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtrak.checks import Section, first_difference
from dtrak.contracts import Difference
from dtrak.models.settings import DDPMSettings, Shape

if TYPE_CHECKING:
    from dtrak.images.images import Images
    from dtrak.models.diffusion import DiffusionModel
    from dtrak.models.layout import Layout


class DDPM:
    """U-Nets on pixels."""

    settings: type[Section] = DDPMSettings
    defaults: Mapping[str, Mapping[str, Any]] = {}
    attributed = "all"
    makes_new_weights = True
    pipelines: tuple[str, ...] = ("DDPMPipeline", "DDIMPipeline", "PNDMPipeline", "ScoreSdeVePipeline")

    def opens(self, folder: Path) -> bool:
        return True  # it is tried last; `load` refuses a folder that does not hold such a U-Net

    def check(self, folder: Path, source: str) -> None:
        from dtrak.models import ddpm

        ddpm.check(folder, source)

    def load(self, folder: Path, source: str, lora: str | None, prompt: str | None) -> "DiffusionModel":
        from dtrak.models import ddpm

        return ddpm.load(folder, source, lora, prompt)

    def wrap(self, pipeline: Any, source: str, prompt: str | None) -> "DiffusionModel":
        """Return the model of a pipeline object."""
        from dtrak.models import ddpm

        return ddpm.assemble(pipeline.unet, pipeline.scheduler, source)

    def is_conditional(self, settings: DDPMSettings) -> bool:
        return bool(settings.classes or settings.unet.get("num_class_embeds"))

    def timesteps(self, settings: DDPMSettings) -> int:
        return settings.schedule.num_train_timesteps

    def new(self, settings: DDPMSettings, shape: Shape, source: str) -> "DiffusionModel":
        from dtrak.models import ddpm

        return ddpm.new(settings.unet, settings.schedule.model_dump(), shape, source, settings.classes)

    def save(self, model: "DiffusionModel", folder: Path) -> None:
        from dtrak.models import ddpm

        ddpm.save(model, folder)

    def check_complete(self, settings: Mapping[str, Any], recipe: str) -> None:
        return

    def check_buildable(self, settings: DDPMSettings, images: "Images", recipe: str) -> None:
        import torch

        with torch.device("meta"):
            model = self.new(settings, images.shape, recipe)
        if model.conditions is not None:
            model.conditions.check(images)

    def difference(
        self, model: "DiffusionModel", settings: DDPMSettings, shape: Shape, recipe: str
    ) -> Difference | None:
        import torch

        from dtrak.models import ddpm

        if model.family != "ddpm":
            return "the kind", model.family, "ddpm"
        with torch.device("meta"):
            wanted = ddpm.model_settings(self.new(settings, shape, recipe))
        stored = ddpm.model_settings(model)
        # A folder may hold settings that diffusers does not know.
        found = {part: {name: stored[part].get(name) for name in names} for part, names in wanted.items()}
        return first_difference(found, wanted)

    def settings_of(self, model: "DiffusionModel") -> dict[str, Any]:
        from dtrak.models import ddpm

        return {"kind": "ddpm", **ddpm.recipe_settings(model)}

    def lay_out(self, settings: DDPMSettings, shape: Shape, source: str) -> "Layout":
        from dtrak.models.layout import lay_out_network

        return lay_out_network(lambda: self.new(settings, shape, source), shape, source)

    def most_prompts(self, settings: DDPMSettings, images: int, classes: int | None) -> int:
        return 0

    def to_fetch(self, settings: DDPMSettings, layout: "Layout") -> list[str]:
        return []

    def description(self, settings: DDPMSettings, images: str) -> str:
        widths = settings.unet.get("block_out_channels", ["diffusers’ default"])
        return f"DDPM {images}, U-Net of width {', '.join(map(str, widths))}"
