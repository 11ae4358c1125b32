"""What a method is: what it scores from, and a formula.

    scores = mean over models and objectives of  formula(what they make of training images and queries, λ)        [Q, N]

One sign everywhere: positive = proponent, training on the image lowers the query's loss.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.inputs.task import Source
from dtrak.kernels.damping import Damping

Values = NDArray[np.float32]  # [Q, N]


@dataclass(frozen=True)
class Method:
    """A name, what the formula sees (`inputs/arrays.py`), and the formula."""

    name: str
    summary: str
    source: Source
    formula: Callable[[Any, Damping], Values]
    damped: bool = False  # whether λ matters
    tells_self_influence: bool = False  # whether the score of an image for itself is the kernel's own, τ(x^n)_n

    @property
    def needs(self) -> str:
        return self.source.needs

    @property
    def cost(self) -> str:
        return self.source.cost
