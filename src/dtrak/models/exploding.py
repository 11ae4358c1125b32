"""Noise processes that leave the image as it is and add more and more noise: x_t = x + s_t ε.

    score-based (NCSN++):  pixels y = (x + 1) / 2 in [0, 1], y_t = y + σ_t ε, so that s_t = 2 σ_t;
                           the network is given y_t and σ_t, and predicts the score −ε / σ_t
    EDM:                   s_t = σ_t; the network F is given c_in x_t and ¼ ln σ_t, and
                           c_skip x_t + c_out F is its estimate of x

L_Simple is that of ε, as for DDPMs. Timesteps are whole numbers from 0, the least noise, to T − 1, the most.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dtrak.models.euler import Euler, evenly_spaced

SCORE_BASED = ("ScoreSdeVeScheduler",)
EDM = ("EDMEulerScheduler", "EDMDPMSolverMultistepScheduler")


@dataclass(frozen=True, eq=False)
class Exploding:
    """What both have in common."""

    scheduler: Any  # of diffusers
    levels: Tensor  # σ_t [T], rising

    @property
    def timesteps(self) -> int:
        return len(self.levels)

    def level(self, t: Tensor) -> Tensor:
        """Return σ_t [B, 1, 1, 1]."""
        return self.levels.to(t.device)[t].view(-1, 1, 1, 1)

    def sigmas(self, t: Tensor) -> Tensor:
        """Return s_t [B, 1, 1, 1]."""
        return self.level(t)

    def add_noise(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        return clean + self.sigmas(t) * noise

    def target(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        return noise

    def elbo_weights(self, t: Tensor) -> Tensor:
        """Return (σ_t² − σ_{t−1}²) / (2 σ_t²), where σ = 0 before the first timestep, [B]."""
        below = torch.cat([self.levels.new_zeros(1), self.levels[:-1]])
        weights = (1 - (below / self.levels) ** 2) / 2
        return weights.to(t.device)[t]

    def fingerprint_bytes(self) -> bytes:
        settings = sorted((name, str(value)) for name, value in self.scheduler.config.items() if name[0] != "_")
        return type(self).__name__.encode() + repr(settings).encode()


@dataclass(frozen=True, eq=False)
class ScoreBased(Exploding):
    """The noise process of a `ScoreSdeVeScheduler`."""

    def sigmas(self, t: Tensor) -> Tensor:
        return 2 * self.level(t)

    def network_input(self, noisy: Tensor, t: Tensor) -> Tensor:
        return (noisy + 1) / 2

    def time(self, t: Tensor) -> Tensor:
        return self.level(t).flatten()

    def training_target(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        return -noise / self.level(t)

    def target_from_prediction(self, prediction: Tensor, noisy: Tensor, t: Tensor) -> Tensor:
        return -self.level(t) * prediction

    def solver(self, steps: int) -> Euler:
        return Euler(self, evenly_spaced(self.timesteps, steps), 2 * float(self.levels[-1]))


@dataclass(frozen=True, eq=False)
class Preconditioned(Exploding):
    """The noise process of EDM's schedulers."""

    def factors(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return c_in, c_skip and c_out, each [B, 1, 1, 1]."""
        sigma, data = self.level(t), self.scheduler.config.sigma_data
        total = sigma**2 + data**2
        sign = -1 if self.scheduler.config.prediction_type == "v_prediction" else 1
        return total**-0.5, data**2 / total, sign * sigma * data * total**-0.5

    def network_input(self, noisy: Tensor, t: Tensor) -> Tensor:
        return self.factors(t)[0] * noisy

    def time(self, t: Tensor) -> Tensor:
        return self.level(t).flatten().log() / 4

    def training_target(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        _, skip, out = self.factors(t)
        return (clean - skip * self.add_noise(clean, noise, t)) / out

    def target_from_prediction(self, prediction: Tensor, noisy: Tensor, t: Tensor) -> Tensor:
        _, skip, out = self.factors(t)
        return ((1 - skip) * noisy - out * prediction) / self.level(t)

    def solver(self, steps: int) -> Euler:
        return Euler(self, evenly_spaced(self.timesteps, steps), float(self.scheduler.init_noise_sigma))


def is_exploding(kind: str) -> bool:
    """Tell whether a class of diffusers' schedulers has such a noise process."""
    return kind in SCORE_BASED + EDM


def exploding(scheduler: Any) -> ScoreBased | Preconditioned:
    """Return the noise process of a scheduler, with all σ_t that its settings give."""
    kind = type(scheduler)
    new = kind.from_config(scheduler.config)  # one that has drawn a picture has lost all σ but those of its steps
    if kind.__name__ in SCORE_BASED:
        return ScoreBased(new, new.discrete_sigmas.float())
    count = scheduler.config.num_train_timesteps
    new.set_timesteps(count)
    return Preconditioned(new, new.sigmas[:count].flip(0).float())
