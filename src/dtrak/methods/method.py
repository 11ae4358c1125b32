"""What a method is: a name, what it costs, the objective of its features, and a function from features to scores."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtrak.kernels import Kernel

Score = Callable[[Kernel, NDArray[np.float32], float], NDArray[np.float32]]


@dataclass(frozen=True)
class Method:
    name: str
    summary: str
    needs: str
    cost: str
    objective: str  # whose gradients are its features, unless the user asks for another
    any_objective: bool  # whether the user may
    score: Score  # (the training features' kernel, query features [Q, k], λ) → [Q, N]; positive = proponent
