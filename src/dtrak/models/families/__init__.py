"""The families of models, each a class in a file of its own. No other code asks which family a model belongs to."""

from pathlib import Path
from typing import Any

from dtrak.contracts import Family
from dtrak.models.families.aura_flow import AuraFlow
from dtrak.models.families.dit import DiT
from dtrak.models.families.flux import Flux
from dtrak.models.families.latent_diffusion import LatentDiffusion
from dtrak.models.families.lumina import Lumina
from dtrak.models.families.pipeline_family import PipelineFamily
from dtrak.models.families.pixart import PixArt
from dtrak.models.families.sana import Sana
from dtrak.models.families.stable_diffusion import StableDiffusion
from dtrak.models.families.stable_diffusion_3 import StableDiffusion3
from dtrak.models.families.stable_diffusion_xl import StableDiffusionXL
from dtrak.models.families.unet2d import DDPM
from dtrak.registry import Registry

__all__ = [
    "DDPM",
    "FAMILIES",
    "PipelineFamily",
    "StableDiffusion",
    "family_of",
    "family_that_opens",
]

BUILT_IN: dict[str, DDPM | PipelineFamily] = {
    "ddpm": DDPM(),
    "stable-diffusion": StableDiffusion(),
    "stable-diffusion-xl": StableDiffusionXL(),
    "stable-diffusion-3": StableDiffusion3(),
    "flux": Flux(),
    "pixart": PixArt(),
    "dit": DiT(),
    "latent-diffusion": LatentDiffusion(),
    "sana": Sana(),
    "aura-flow": AuraFlow(),
    "lumina": Lumina(),
}
FAMILIES: Registry[Family] = Registry("kind of model", "dtrak.models", BUILT_IN)


def family_of(settings: Any) -> Family:
    """Return the family of a recipe's section `model`."""
    return FAMILIES.choose(settings.kind)


def family_that_opens(folder: Path, source: str) -> Family:
    """Return the family of the model in a folder; families of other packages are tried first, `ddpm` last."""
    from dtrak.models.pipelines import pipeline_class, refuse_pipeline

    outside = [FAMILIES[name] for name in FAMILIES if name not in BUILT_IN]
    if found := [family for family in outside if family.opens(folder)]:
        return found[0]
    kind = pipeline_class(folder, source)
    if kind is not None and kind not in supported_pipelines():
        refuse_pipeline(source, kind, supported_pipelines())
    first, *others = BUILT_IN.values()
    return next((family for family in others if family.opens(folder)), first)


def family_of_pipeline(pipeline: Any) -> DDPM | PipelineFamily:
    """Return the family of a pipeline object of diffusers."""
    from dtrak.models.pipelines import refuse_pipeline

    kind = type(pipeline).__name__
    if kind not in supported_pipelines():
        refuse_pipeline("the model", kind, supported_pipelines())
    return next(family for family in BUILT_IN.values() if kind in family.pipelines)


def supported_pipelines() -> tuple[str, ...]:
    """Return the classes of diffusers' pipelines that are supported."""
    return tuple(name for family in BUILT_IN.values() for name in family.pipelines)
