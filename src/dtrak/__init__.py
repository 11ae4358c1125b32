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

if TYPE_CHECKING:  # what `PUBLIC` says, for type checkers
    from dtrak.attribution.attribute import attribute as attribute
    from dtrak.attribution.credit import Credit as Credit
    from dtrak.attribution.index import Index as Index
    from dtrak.attribution.scores import Match as Match
    from dtrak.attribution.scores import Scores as Scores
    from dtrak.images.images import Images as Images
    from dtrak.images.images import load_images as load_images
    from dtrak.images.objects import images_from as images_from
    from dtrak.models import DiffusionModel as DiffusionModel
    from dtrak.models import load_model as load_model
    from dtrak.runs.ready import ready_run as ready_run
    from dtrak.runs.run import Run as Run
    from dtrak.runs.run import open_run as open_run

PUBLIC = {
    "attribute": "attribution.attribute:attribute",
    "Credit": "attribution.credit:Credit",
    "DiffusionModel": "models:DiffusionModel",
    "Images": "images.images:Images",
    "Index": "attribution.index:Index",
    "load_images": "images.images:load_images",
    "images_from": "images.objects:images_from",
    "load_model": "models:load_model",
    "Match": "attribution.scores:Match",
    "open_run": "runs.run:open_run",
    "ready_run": "runs.ready:ready_run",
    "Run": "runs.run:Run",
    "Scores": "attribution.scores:Scores",
    **{name: name for name in ("evaluation", "features", "figures", "kernels", "methods")},
    "objectives": "gradients.objectives",
}
__all__ = [name for name, place in PUBLIC.items() if ":" in place]


def __getattr__(name: str) -> Any:
    """Import a name on first use: torch and diffusers take seconds to import, and `dtrak --help` should be fast."""
    if name == "__version__":
        from importlib.metadata import version

        return version("dtrak")
    module, _, attribute = PUBLIC.get(name, name).partition(":")
    try:
        found = import_module(f"dtrak.{module}")
    except ModuleNotFoundError as error:
        if error.name != f"dtrak.{name}":
            raise
        raise AttributeError(f"module 'dtrak' has no attribute {name!r}") from None
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    """List the public names, for completion."""
    return sorted([*PUBLIC, "__doc__", "__version__"])
