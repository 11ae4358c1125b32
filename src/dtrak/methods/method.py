"""What a method is: what it scores from, and a formula.

    scores = mean over models of  formula(what the model makes of training images and queries, λ)        [Q, N]

One sign everywhere: positive = proponent, training on the image lowers the query's loss.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dtrak.kernels.damping import Damping

Values = NDArray[np.float32]  # [Q, N]
Models = Literal["final", "checkpoints", "retrained"]

MODELS: dict[Models, tuple[str, str]] = {
    "final": ("the model", ""),
    "checkpoints": ("checkpoints", "4 × "),
    "retrained": ("models retrained on halves", "S trainings and S × "),
}


@dataclass(frozen=True)
class Pixels:
    """The images as they are."""

    needs: str = "only the images"
    cost: str = "next to nothing"


@dataclass(frozen=True)
class Embeddings:
    """What an image encoder makes of them."""

    needs: str = "an image encoder"
    cost: str = "a pass of the encoder per image"


@dataclass(frozen=True)
class Gradients:
    """Projected gradients of an objective, by one model or by each of several."""

    objective: str = "simple"
    any_objective: bool = False  # whether the user may ask for another
    also: tuple[str, ...] = ()  # objectives whose scores are averaged with those of the first, which sets their λ
    models: Models = "final"
    journey: bool = False  # whether a query's gradients are those along its sampling trajectory

    @property
    def needs(self) -> str:
        return MODELS[self.models][0] + " and the queries' seeds" * self.journey

    @property
    def cost(self) -> str:
        return MODELS[self.models][1] + f"{1 + len(self.also)} × " * bool(self.also) + "K gradients per image"


@dataclass(frozen=True)
class Outcomes:
    """What retrained models made of the queries."""

    needs: str = "losses under models retrained on halves"
    cost: str = "S trainings"


@dataclass(frozen=True)
class Nothing:
    """Not even the images."""

    needs: str = "nothing"
    cost: str = "nothing"


Source = Pixels | Embeddings | Gradients | Outcomes | Nothing


@dataclass(frozen=True)
class Method:
    name: str
    summary: str
    source: Source
    formula: Callable[[Any, Damping], Values]  # from one of the inputs in `inputs.py`, as the source has it
    damped: bool = False  # whether λ matters

    @property
    def needs(self) -> str:
        return self.source.needs

    @property
    def cost(self) -> str:
        return self.source.cost
