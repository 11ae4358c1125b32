"""How noise is mixed into an image, what a network predicts, and how a solver leads from noise back to an image.

    diffusion:     x_t = √ᾱ_t x + √(1−ᾱ_t) ε,  the network predicts ε, x, or v = √ᾱ_t ε − √(1−ᾱ_t) x;  solver: DDIM
    flow:          x_t = (1−σ_t) x + σ_t ε,      the network predicts v = ε − x;                           solver: Euler
    score-based:   x_t = x + 2 σ_t ε,            the network is given pixels (x_t + 1) / 2 in [0, 1] and σ_t,
                                                 and predicts the score −ε / σ_t (NCSN++);                solver: Euler
    EDM:           x_t = x + σ_t ε,              the network F is given c_in x_t and ¼ ln σ_t, and
                                                 c_skip x_t + c_out F is its estimate of x;               solver: Euler

L_Simple is that of v for flows and of ε for all others. Timesteps are whole numbers from 0, almost no noise, to T − 1,
almost only noise.
"""

from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dtrak.fingerprints import Facts, of_tensors


class NoiseProcess:
    """All that objectives, training and sampling need to know about noise. `t` is [B]; images are [B, C, H, W]."""

    @property
    def timesteps(self) -> int:
        """T, the number of timesteps."""
        raise NotImplementedError

    @property
    def facts(self) -> Facts:
        """What x_t, the targets and their weights depend on as `noise`, and what else drawing does as `solver`."""
        raise NotImplementedError

    def signal_and_noise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return s_t and σ_t of x_t = s_t x + σ_t ε, each [B, 1, 1, 1]."""
        raise NotImplementedError

    def add_noise(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Return x_t."""
        signal, sigma = self.signal_and_noise(t.to(clean.device))
        return signal * clean + sigma * noise

    @property
    def visible(self) -> Tensor:
        """How much of an image is left at each timestep: s / √(s² + σ²), [T]."""
        signal, sigma = self.signal_and_noise(torch.arange(self.timesteps))
        return (signal / torch.hypot(signal, sigma)).flatten()

    def network_input(self, noisy: Tensor, t: Tensor) -> Tensor:
        """Return what the network is given as x_t."""
        return noisy

    def time(self, t: Tensor) -> Tensor:
        """Return the time that the network takes as its argument for the timesteps, [B]."""
        return t

    def training_target(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Return what the network is trained to predict."""
        raise NotImplementedError

    def target(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Return the target of L_Simple: ε of a diffusion, v of a flow."""
        return noise

    def target_from_prediction(self, prediction: Tensor, noisy: Tensor, t: Tensor) -> Tensor:
        """Turn the network's prediction into an estimate of `target`."""
        raise NotImplementedError

    def elbo_weights(self, t: Tensor) -> Tensor:
        """Return the weights of L_Simple in the ELBO, [B]."""
        raise NotImplementedError

    def solver(self, steps: int) -> Any:
        """Return what leads from noise to an image: diffusers' DDIM, or `Euler`, which has the same interface."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Diffusion(NoiseProcess):
    """The noise process of a DDPM."""

    scheduler: Any  # diffusers' DDPMScheduler or DDIMScheduler

    @property
    def timesteps(self) -> int:
        return int(self.scheduler.config.num_train_timesteps)

    @property
    def facts(self) -> Facts:
        schedule = of_tensors({"ᾱ": self.scheduler.alphas_cumprod})
        noise = {"predicts": self.scheduler.config.prediction_type, "schedule": schedule}
        return {"noise": noise, "solver": settings_of(self.solver(1))}

    def signal_and_noise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        alphas = self.scheduler.alphas_cumprod.to(t.device)[t].view(-1, 1, 1, 1)
        return alphas.sqrt(), (1 - alphas).sqrt()

    def training_target(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        kind = self.scheduler.config.prediction_type
        if kind != "v_prediction":
            return noise if kind == "epsilon" else clean
        signal, sigma = self.signal_and_noise(t)
        return signal * noise - sigma * clean

    def target_from_prediction(self, prediction: Tensor, noisy: Tensor, t: Tensor) -> Tensor:
        kind = self.scheduler.config.prediction_type
        if kind == "epsilon":
            return prediction
        signal, sigma = self.signal_and_noise(t)
        return signal * prediction + sigma * noisy if kind == "v_prediction" else (noisy - signal * prediction) / sigma

    def elbo_weights(self, t: Tensor) -> Tensor:
        """Return β_t² / (2 σ_t² α_t (1−ᾱ_t)) with σ_t² = β_t, [B]."""
        betas = self.scheduler.betas.to(t.device)[t]
        alphas_cumprod = self.scheduler.alphas_cumprod.to(t.device)[t]
        alphas = (1 - betas).clamp(min=torch.finfo(betas.dtype).eps)  # 0 where a schedule ends in pure noise
        weights: Tensor = betas / (2 * alphas * (1 - alphas_cumprod))
        return weights

    def solver(self, steps: int) -> Any:
        from diffusers import DDIMScheduler

        scheduler = DDIMScheduler.from_config(self.scheduler.config)
        scheduler.set_timesteps(steps)
        return scheduler


@dataclass(frozen=True, eq=False)
class Flow(NoiseProcess):
    """A rectified flow: x_t moves on a straight line from the image to the noise."""

    scheduler: Any  # diffusers' FlowMatchEulerDiscreteScheduler

    @property
    def timesteps(self) -> int:
        return int(self.scheduler.config.num_train_timesteps)

    @property
    def facts(self) -> Facts:
        return {"noise": {"predicts": "flow", "schedule": of_tensors({"σ": self.scheduler.sigmas})}, "solver": "Euler"}

    def signal_and_noise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return 1 − σ_t and σ_t; diffusers lists σ from the most noise to the least."""
        rising: Tensor = self.scheduler.sigmas[: self.timesteps].flip(0).to(t.device)
        sigma = rising[t].view(-1, 1, 1, 1)
        return 1 - sigma, sigma

    def time(self, t: Tensor) -> Tensor:
        return self.signal_and_noise(t)[1].flatten() * self.timesteps

    def training_target(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        return noise - clean

    def target(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        return noise - clean

    def target_from_prediction(self, prediction: Tensor, noisy: Tensor, t: Tensor) -> Tensor:
        return prediction

    def elbo_weights(self, t: Tensor) -> Tensor:
        """Return (1−σ_t) / σ_t: half the slope of the log signal-to-noise ratio, for a loss in v, [B]."""
        signal, sigma = self.signal_and_noise(t)
        return (signal / sigma).flatten()

    def solver(self, steps: int) -> "Euler":
        return Euler(self, evenly_spaced(self.timesteps, steps))


@dataclass(frozen=True, eq=False)
class Exploding(NoiseProcess):
    """What score-based models and EDM have in common: noise is added to an unchanged image, x_t = x + s_t ε."""

    scheduler: Any  # of diffusers
    levels: Tensor  # σ_t [T], rising
    scale = 1  # s_t / σ_t

    @property
    def timesteps(self) -> int:
        return len(self.levels)

    @property
    def facts(self) -> Facts:
        return {"noise": settings_of(self.scheduler), "solver": "Euler"}

    def level(self, t: Tensor) -> Tensor:
        """Return σ_t [B, 1, 1, 1]."""
        return self.levels.to(t.device)[t].view(-1, 1, 1, 1)

    def signal_and_noise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        sigma = self.scale * self.level(t)
        return torch.ones_like(sigma), sigma

    def elbo_weights(self, t: Tensor) -> Tensor:
        """Return (σ_t² − σ_{t−1}²) / (2 σ_t²), where σ = 0 before the first timestep, [B]."""
        below = torch.cat([self.levels.new_zeros(1), self.levels[:-1]])
        weights = (1 - (below / self.levels) ** 2) / 2
        return weights.to(t.device)[t]


@dataclass(frozen=True, eq=False)
class ScoreBased(Exploding):
    """The noise process of a `ScoreSdeVeScheduler`."""

    scale = 2

    def network_input(self, noisy: Tensor, t: Tensor) -> Tensor:
        return (noisy + 1) / 2

    def time(self, t: Tensor) -> Tensor:
        return self.level(t).flatten()

    def training_target(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        return -noise / self.level(t)

    def target_from_prediction(self, prediction: Tensor, noisy: Tensor, t: Tensor) -> Tensor:
        return -self.level(t) * prediction

    def solver(self, steps: int) -> "Euler":
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

    def solver(self, steps: int) -> "Euler":
        return Euler(self, evenly_spaced(self.timesteps, steps), float(self.scheduler.init_noise_sigma))


@dataclass(frozen=True)
class EulerStep:
    """The result of one step of `Euler`."""

    prev_sample: Tensor  # x at the next lower timestep
    pred_original_sample: Tensor  # x̂_0, the image that x_t is estimated to come from


@dataclass(frozen=True, eq=False)
class Euler:
    """Euler's solver, for processes in which x_t moves with σ_t on a straight line, whose slope is the target v.

    x_s = x_t + (σ_s − σ_t) v. Every step is at a timestep of the training, and σ = 0 at the end.
    """

    process: NoiseProcess
    timesteps: Tensor  # [steps], falling
    init_noise_sigma: float = 1.0  # the standard deviation of the noise that it starts from

    def step(self, prediction: Tensor, t: Tensor, x: Tensor) -> EulerStep:
        """Take a step from x_t to the next lower timestep, with what the network predicts for x_t."""
        lower = self.timesteps[self.timesteps < t.cpu()]
        sigma = float(self.process.signal_and_noise(t.view(1))[1])
        next_sigma = float(self.process.signal_and_noise(lower[:1])[1]) if len(lower) else 0.0
        slope = self.process.target_from_prediction(prediction, x, t.to(x.device).view(1))
        return EulerStep(x + (next_sigma - sigma) * slope, x - sigma * slope)


def evenly_spaced(timesteps: int, steps: int) -> Tensor:
    """Return so many timesteps from the last to the first, [steps]."""
    return torch.from_numpy(np.linspace(timesteps - 1, 0, steps).round().astype(np.int64))


def settings_of(scheduler: Any) -> Facts:
    """Return the settings of a scheduler of diffusers as facts."""
    kind = type(scheduler)
    return {"class": kind.__name__} | {name: str(scheduler.config[name]) for name in signature(kind).parameters}
