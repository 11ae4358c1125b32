"""λ: how little the training images may differ in a direction before the kernel forgets it.

By default λ is read off the spectrum, such that the kernel keeps as many directions as the root of the images' number:

    d(λ) = Σ_r s_r / (s_r + λ) = √N

which needs no search and no retrained model, and follows the objective, the timesteps and the parameters by itself.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import brentq

from dtrak.errors import UsageError
from dtrak.kernels import Kernel


@dataclass(frozen=True)
class Damping:
    """λ by rule, as a fraction of the mean eigenvalue of ΦΦᵀ so that no scale of the features matters, or as it is."""

    kind: Literal["auto", "relative", "absolute"] = "auto"
    value: float = np.nan  # unless by rule

    @classmethod
    def parse(cls, text: float | str) -> "Damping":
        """From `auto`, from `0.1`, relative, or from `absolute:5`."""
        text = str(text)
        if text == "auto":
            return cls()
        number = text.removeprefix("absolute:")
        try:
            value = float(number)
        except ValueError:
            value = np.nan
        if not (np.isfinite(value) and value > 0):
            raise UsageError(
                f"damping {text!r}: give auto, a positive fraction of the mean eigenvalue such as 0.1, or absolute:5"
            )
        return cls("relative" if number == text else "absolute", value)

    def absolute(self, kernel: Kernel) -> float:
        match self.kind:
            case "auto":
                return damping_of_dimension(kernel, kernel.images**0.5)
            case "relative":
                return self.value * kernel.mean_eigenvalue
            case "absolute":
                return self.value


def effective_dimension(kernel: Kernel, damping: float) -> float:
    """d(λ) = Σ_r s_r / (s_r + λ): how many directions the kernel keeps; falls from r to 0 as λ grows."""
    return float((kernel.eigenvalues / (kernel.eigenvalues + damping)).sum())


def damping_of_dimension(kernel: Kernel, dimension: float) -> float:
    """The λ whose effective dimension is this, or half the rank if that is less."""
    rank = len(kernel.eigenvalues)
    dimension = min(dimension, rank / 2)
    low = np.log(kernel.eigenvalues[0] / (2 * rank))  # d ≥ r − ½
    high = np.log(kernel.eigenvalues.sum() / dimension)  # d ≤ Σ s / λ
    return float(np.exp(brentq(lambda log: effective_dimension(kernel, np.exp(log)) - dimension, low, high)))


# What a sweep tries: the paper's own values, and half decades of the mean eigenvalue.
GRIDS: dict[str, tuple[Damping, ...]] = {
    "paper": tuple(Damping("absolute", digit * 10.0**power) for power in range(-2, 7) for digit in (1, 2, 5)),
    "log": tuple(Damping("relative", 10.0 ** (power / 2)) for power in range(-10, 7)),
}
