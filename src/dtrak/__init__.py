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
    from dtrak.attribution.index import Index
    from dtrak.attribution.scores import Scores
    from dtrak.images.images import Images, load_images
    from dtrak.models import DiffusionModel, load_model

__all__ = ["DiffusionModel", "Images", "Index", "Scores", "attribute", "load_images", "load_model"]

_MODULE_OF = {
    "attribute": "attribution.attributing",
    "Images": "images.images",
    "Index": "attribution.index",
    "load_images": "images.images",
    "DiffusionModel": "models",
    "load_model": "models",
    "Scores": "attribution.scores",
}
_SHORT_NAMES = {"objectives": "gradients.objectives"}  # dtrak.objectives stands for dtrak.gradients.objectives


def __getattr__(name: str) -> Any:
    """Import a name on first use: torch and diffusers take seconds to import, and `dtrak --help` should be fast."""
    if name in _MODULE_OF:
        return getattr(import_module(f"dtrak.{_MODULE_OF[name]}"), name)
    try:
        return import_module(f"dtrak.{_SHORT_NAMES.get(name, name)}")
    except ModuleNotFoundError as error:
        if error.name != f"dtrak.{name}":
            raise
        raise AttributeError(f"module 'dtrak' has no attribute {name!r}") from None
