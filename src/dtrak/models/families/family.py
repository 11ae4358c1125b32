"""What a family of models is: a class that opens, makes, saves, checks and describes its models."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dtrak.checks import Section
from dtrak.models.settings import Shape

if TYPE_CHECKING:
    from dtrak.images.images import Images
    from dtrak.models.diffusion import DiffusionModel
    from dtrak.models.layout import Layout

Difference = tuple[str, Any, Any]  # between two models: the name of a setting, and its value in each model


class ModelFamily(Protocol):
    """Models of one kind. The argument `settings` of a method is an object of the family's class `settings`.

    Networks are imported where they are needed: diffusers takes seconds to import, and a mistake in a recipe should be
    reported before.
    """

    settings: type[Section]  # the class of a recipe's section `model`, whose field `kind` is the family's name
    defaults: Mapping[str, Mapping[str, Any]]  # for a recipe's other sections, if the family needs its own
    attributed: str  # describes the parameters that are trained and attributed
    makes_new_weights: bool  # whether all weights of a new model are new; else some must exist already

    def opens(self, folder: Path) -> bool:
        """Tell whether a folder holds a model of this family."""

    def check(self, folder: Path, source: str) -> None:
        """Refuse a folder whose settings are not supported, before its weights are downloaded or read."""

    def load(self, folder: Path, source: str, lora: str | None, prompt: str | None) -> "DiffusionModel":
        """Load the model in a folder; `source` is what the user typed."""

    def is_conditional(self, settings: Any) -> bool:
        """Tell whether pictures are drawn of a prompt or a class."""

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

    def settings_of(self, model: "DiffusionModel") -> dict[str, Any]:
        """Return a recipe's section `model` that makes such a model."""

    def lay_out(self, settings: Any, shape: Shape, source: str) -> "Layout":
        """Return the sizes of the model without making it."""

    def most_prompts(self, settings: Any, images: int, classes: int | None) -> int:
        """Return the largest possible number of different prompts, including the empty one."""

    def to_fetch(self, settings: Any, layout: "Layout") -> list[str]:
        """Describe what has to be downloaded first."""

    def description(self, settings: Any, images: str) -> str:
        """Describe a model for such images."""
