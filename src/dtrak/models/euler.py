"""Euler's solver: it draws a picture along the straight lines that the network predicts, from much noise to none.

x_s = x_t + (σ_s − σ_t) v        v: what the network estimates as dx/dσ
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class Straight(Protocol):
    """A noise process in which x_t moves with σ_t on a straight line, whose slope is the target of L_Simple."""

    @property
    def timesteps(self) -> int: ...

    def sigmas(self, t: Tensor) -> Tensor: ...

    def target_from_prediction(self, prediction: Tensor, noisy: Tensor, t: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class EulerStep:
    """The result of one step of `Euler`."""

    prev_sample: Tensor
    pred_original_sample: Tensor


@dataclass(frozen=True, eq=False)
class Euler:
    """Every step is at a timestep of the training, and σ = 0 at the end."""

    process: Straight
    timesteps: Tensor  # [steps], falling
    init_noise_sigma: float = 1.0

    def step(self, prediction: Tensor, t: Tensor, x: Tensor) -> EulerStep:
        """Take a step from x_t to the next lower timestep."""
        lower = self.timesteps[self.timesteps < t.cpu()]
        sigma = float(self.process.sigmas(t.view(1)))
        next_sigma = float(self.process.sigmas(lower[:1])) if len(lower) else 0.0
        slope = self.process.target_from_prediction(prediction, x, t.to(x.device).view(1))
        return EulerStep(x + (next_sigma - sigma) * slope, x - sigma * slope)


def evenly_spaced(timesteps: int, steps: int) -> Tensor:
    """Return so many timesteps from the last to the first, [steps]."""
    return torch.from_numpy(np.linspace(timesteps - 1, 0, steps).round().astype(np.int64))
