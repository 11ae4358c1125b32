"""The families of models, each a class in a file of its own. No other code asks which family a model belongs to."""

from pathlib import Path
from typing import Any

from dtrak.contracts import Family
from dtrak.models.pipelines import pipeline_class, refuse_pipeline
from dtrak.registry import Registry

HERE = "dtrak.models.families"
BUILT_IN = {
    "ddpm": f"{HERE}.unet2d:FAMILY",
    "stable-diffusion": f"{HERE}.stable_diffusion:FAMILY",
    "stable-diffusion-xl": f"{HERE}.stable_diffusion_xl:FAMILY",
    "stable-diffusion-3": f"{HERE}.stable_diffusion_3:FAMILY",
    "flux": f"{HERE}.flux:FAMILY",
    "pixart": f"{HERE}.pixart:FAMILY",
    "dit": f"{HERE}.dit:FAMILY",
    "latent-diffusion": f"{HERE}.latent_diffusion:FAMILY",
    "sana": f"{HERE}.sana:FAMILY",
    "aura-flow": f"{HERE}.aura_flow:FAMILY",
    "lumina": f"{HERE}.lumina:FAMILY",
}
FAMILIES: Registry[Family] = Registry("kind of model", "dtrak.models", BUILT_IN)


def family_that_opens(folder: Path, source: str) -> Family:
    """Return the family of the model in a folder; families of other packages are tried first, `ddpm` last."""
    outside = [FAMILIES[name] for name in FAMILIES if name not in BUILT_IN]
    if found := [family for family in outside if family.opens(folder)]:
        return found[0]
    kind = pipeline_class(folder, source)
    if kind is not None and kind not in (known := _pipelines()):
        refuse_pipeline(source, kind, list(known))
    first, *others = (FAMILIES[name] for name in BUILT_IN)
    return next((family for family in others if family.opens(folder)), first)


def family_of_pipeline(pipeline: Any) -> Any:
    """Return the family of a pipeline object of diffusers."""
    kind = type(pipeline).__name__
    if kind not in (known := _pipelines()):
        refuse_pipeline("the model", kind, list(known))
    return known[kind]


def _pipelines() -> dict[str, Any]:
    """Return the family of each class of diffusers' pipelines that is supported."""
    families: list[Any] = [FAMILIES[name] for name in BUILT_IN]
    return {name: family for family in families for name in family.pipelines}
