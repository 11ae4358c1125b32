"""Which training images made this picture? Data attribution for diffusion models.

>>> model = dtrak.load_model("runs/digits/model")
>>> train = dtrak.load_images("digits:train")
>>> scores = dtrak.attribute(model, train, "digits:validation", method="d-trak")
>>> scores.top(5), scores.credit(by="label")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtrak.attribution.attributing import attribute
    from dtrak.attribution.scores import Scores
    from dtrak.images.images import Images, load_images
    from dtrak.models import DiffusionModel, load_model

__all__ = ["DiffusionModel", "Images", "Scores", "attribute", "load_images", "load_model"]

_HOMES = {
    "attribute": "attribution.attributing",
    "Images": "images.images",
    "load_images": "images.images",
    "DiffusionModel": "models",
    "load_model": "models",
    "Scores": "attribution.scores",
}
_ROOMS = {"objectives": "gradients.objectives"}  # modules that are named without their room


def __getattr__(name: str) -> Any:
    """Import on first use: torch and diffusers take seconds, which `dtrak --help` should not."""
    if name in _HOMES:
        return getattr(import_module(f"dtrak.{_HOMES[name]}"), name)
    try:
        return import_module(f"dtrak.{_ROOMS.get(name, name)}")
    except ModuleNotFoundError as error:
        if error.name != f"dtrak.{name}":
            raise
        raise AttributeError(f"module 'dtrak' has no attribute {name!r}") from None
