"""A method has a source of arrays and a formula:

    scores = mean over models and objectives of  formula(arrays of training images and queries, λ)        [Q, N]

If a method sharpens, each of these scores s becomes s·|s|.

The sign is the same for all methods. A positive score marks a proponent: training on the image lowers the query's loss.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dtrak.inputs.settings import Settings
from dtrak.inputs.task import Source
from dtrak.kernels.damping import Damping

Values = NDArray[np.float32]  # [Q, N]
Floating = TypeVar("Floating", bound=np.floating[Any])


@dataclass(frozen=True)
class Method:
    """A method: its name, the source of the arrays that its formula gets (`inputs/arrays.py`), and the formula."""

    name: str
    summary: str
    source: Source
    formula: Callable[[Any, Damping], Values]
    damped: bool = False  # whether λ matters
    linear: bool = True  # whether the formula's score of a sum of query features is the sum of their scores
    has_self_influence: bool = False  # whether the kernel gives the score of an image for itself, τ(x^n)_n
    sharpens: bool = False  # whether scores are squared with their sign kept

    def under(self, settings: Settings) -> "Method":
        """Return the method as these settings have it: they can turn sharpening off."""
        return replace(self, sharpens=self.sharpens and settings.sharpening == "squared")

    def sharpened(self, scores: NDArray[Floating]) -> NDArray[Floating]:
        """Return s·|s| of scores s if the method sharpens, and the scores themselves if not.

        The order of scores stays the same. Small scores, which are often noise, count less in sums.
        """
        return scores * np.abs(scores) if self.sharpens else scores

    @property
    def needs(self) -> str:
        return self.source.needs

    @property
    def cost(self) -> str:
        return self.source.cost
