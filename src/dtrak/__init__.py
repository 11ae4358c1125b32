"""Which training images made this picture? Data attribution for diffusion models.

>>> import dtrak
>>> run = dtrak.ready_run("runs/digits")  # a small run that comes with the package
>>> scores = run.scores()
>>> len(scores.top(5)[0])
5
>>> scores.plot(4).save("figure.pdf")

For a model of your own, `dtrak.attribute(model, train, queries)` makes the scores.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtrak.attribution.attributing import attribute
    from dtrak.attribution.credit import Credit
    from dtrak.attribution.index import Index
    from dtrak.attribution.scores import Match, Scores
    from dtrak.images.images import Images, load_images
    from dtrak.images.objects import images_from
    from dtrak.models import DiffusionModel, load_model
    from dtrak.runs.ready import ready_run
    from dtrak.runs.run import Run, open_run

__all__ = [
    "Credit",
    "DiffusionModel",
    "Images",
    "Index",
    "Match",
    "Run",
    "Scores",
    "attribute",
    "images_from",
    "load_images",
    "load_model",
    "open_run",
    "ready_run",
]

_MODULE_OF = {
    "attribute": "attribution.attributing",
    "Credit": "attribution.credit",
    "DiffusionModel": "models",
    "Images": "images.images",
    "Index": "attribution.index",
    "load_images": "images.images",
    "images_from": "images.objects",
    "load_model": "models",
    "Match": "attribution.scores",
    "open_run": "runs.run",
    "ready_run": "runs.ready",
    "Run": "runs.run",
    "Scores": "attribution.scores",
}
_MODULES = ("evaluation", "features", "figures", "kernels", "methods", "objectives")
_SHORT_NAMES = {"objectives": "gradients.objectives"}  # dtrak.objectives stands for dtrak.gradients.objectives


def __getattr__(name: str) -> Any:
    """Import a name on first use: torch and diffusers take seconds to import, and `dtrak --help` should be fast."""
    if name == "__version__":
        from importlib.metadata import version

        return version("dtrak")
    if name in _MODULE_OF:
        return getattr(import_module(f"dtrak.{_MODULE_OF[name]}"), name)
    try:
        return import_module(f"dtrak.{_SHORT_NAMES.get(name, name)}")
    except ModuleNotFoundError as error:
        if error.name != f"dtrak.{name}":
            raise
        raise AttributeError(f"module 'dtrak' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    """List the public names, for completion."""
    return sorted([*__all__, *_MODULES, "__doc__", "__version__"])
