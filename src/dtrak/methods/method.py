"""A method has a source of arrays and a formula:

    scores = mean over models and objectives of  formula(arrays of training images and queries, λ)        [Q, N]

The sign is the same for all methods. A positive score marks a proponent: training on the image lowers the query's loss.
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
    """A method: its name, the source of the arrays that its formula gets (`inputs/arrays.py`), and the formula."""

    name: str
    summary: str
    source: Source
    formula: Callable[[Any, Damping], Values]
    damped: bool = False  # whether λ matters
    linear: bool = True  # whether the score of a sum of query features is the sum of their scores
    has_self_influence: bool = False  # whether the kernel gives the score of an image for itself, τ(x^n)_n

    @property
    def needs(self) -> str:
        return self.source.needs

    @property
    def cost(self) -> str:
        return self.source.cost
