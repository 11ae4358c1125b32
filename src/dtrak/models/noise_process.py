"""How noise is mixed into an image, what a network is asked and answers, and the way back to an image.

    diffusion:  x_t = √ᾱ_t x + √(1−ᾱ_t) ε,    the network answers ε, or v = √ᾱ_t ε − √(1−ᾱ_t) x;  DDIM leads back
    flow:       x_t = (1−σ_t) x + σ_t ε,        the network answers v = ε − x;                        Euler leads back

Timesteps are whole numbers from 0, hardly any noise, to T − 1, hardly anything else, in both.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from diffusers import DDIMScheduler, DDPMScheduler, FlowMatchEulerDiscreteScheduler
from torch import Tensor

from dtrak.errors import UsageError

PREDICTION_TYPES = ("epsilon", "v_prediction")


class Step(Protocol):
    """One step of a solver."""

    @property
    def prev_sample(self) -> Tensor:
        """x at the next lower timestep."""

    @property
    def pred_original_sample(self) -> Tensor:
        """x̂_0, what x_t was taken for."""


class Solver(Protocol):
    """The way from noise to an image."""

    @property
    def timesteps(self) -> Tensor:
        """[steps], falling."""

    def step(self, answer: Tensor, t: Tensor, x: Tensor, /) -> Step:
        """From x_t, with the network's answer to it."""


class NoiseProcess(Protocol):
    """What objectives, training and sampling have to know of a model's noise. `t` is [B]; images are [B, C, H, W]."""

    @property
    def timesteps(self) -> int:
        """T."""

    def add_noise(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """x_t."""

    def time(self, t: Tensor) -> Tensor:
        """What the network takes for the timesteps, [B]."""

    def training_target(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """What the network is trained to answer."""

    def target(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """What L_Simple compares with: ε of a diffusion, v of a flow."""

    def in_terms_of_target(self, answer: Tensor, noisy: Tensor, t: Tensor) -> Tensor:
        """The network's answer, turned into an estimate of `target`."""

    def elbo_weights(self, t: Tensor) -> Tensor:
        """What L_Simple is weighted with in the ELBO, [B]."""

    def solver(self, steps: int) -> Solver: ...

    def described(self) -> bytes:
        """All that the process depends on, for a fingerprint."""


@dataclass(frozen=True, eq=False)
class Diffusion:
    scheduler: DDPMScheduler

    @property
    def timesteps(self) -> int:
        return int(self.scheduler.config.num_train_timesteps)

    def signal_and_noise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """√ᾱ_t and √(1−ᾱ_t), each [B, 1, 1, 1]."""
        alphas = self.scheduler.alphas_cumprod.to(t.device)[t].view(-1, 1, 1, 1)
        return alphas.sqrt(), (1 - alphas).sqrt()

    def add_noise(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        noisy: Tensor = self.scheduler.add_noise(clean, noise, t)
        return noisy

    def time(self, t: Tensor) -> Tensor:
        return t

    def training_target(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        if self.scheduler.config.prediction_type == "epsilon":
            return noise
        velocity: Tensor = self.scheduler.get_velocity(clean, noise, t)
        return velocity

    def target(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        return noise

    def in_terms_of_target(self, answer: Tensor, noisy: Tensor, t: Tensor) -> Tensor:
        if self.scheduler.config.prediction_type == "epsilon":
            return answer
        signal, sigma = self.signal_and_noise(t)
        return signal * answer + sigma * noisy

    def elbo_weights(self, t: Tensor) -> Tensor:
        """β_t² / (2 σ_t² α_t (1−ᾱ_t)) with σ_t² = β_t, [B]."""
        betas = self.scheduler.betas.to(t.device)[t]
        alphas_cumprod = self.scheduler.alphas_cumprod.to(t.device)[t]
        kept = (1 - betas).clamp(min=torch.finfo(betas.dtype).eps)  # schedules that end in pure noise keep nothing
        weights: Tensor = betas / (2 * kept * (1 - alphas_cumprod))
        return weights

    def solver(self, steps: int) -> Solver:
        """diffusers' DDIM over this schedule."""
        scheduler = DDIMScheduler.from_config(self.scheduler.config)
        scheduler.set_timesteps(steps)
        solver: Solver = scheduler
        return solver

    def described(self) -> bytes:
        kind: str = self.scheduler.config.prediction_type
        content: bytes = self.scheduler.alphas_cumprod.cpu().numpy().tobytes()  # diffusers moves them along
        return kind.encode() + content


@dataclass(frozen=True, eq=False)
class Flow:
    """Rectified flow: a straight line from the image to the noise."""

    scheduler: FlowMatchEulerDiscreteScheduler

    @property
    def timesteps(self) -> int:
        return int(self.scheduler.config.num_train_timesteps)

    def sigmas(self, t: Tensor) -> Tensor:
        """σ_t [B, 1, 1, 1]; diffusers lists them from the most noise to the least."""
        rising: Tensor = self.scheduler.sigmas[: self.timesteps].flip(0).to(t.device)
        return rising[t].view(-1, 1, 1, 1)

    def add_noise(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        sigma = self.sigmas(t)
        return (1 - sigma) * clean + sigma * noise

    def time(self, t: Tensor) -> Tensor:
        return self.sigmas(t).flatten() * self.timesteps

    def training_target(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        return noise - clean

    def target(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        return noise - clean

    def in_terms_of_target(self, answer: Tensor, noisy: Tensor, t: Tensor) -> Tensor:
        return answer

    def elbo_weights(self, t: Tensor) -> Tensor:
        """(1−σ_t) / σ_t: half the slope of the log signal-to-noise ratio, for a loss in v, [B]."""
        sigma = self.sigmas(t).flatten()
        return (1 - sigma) / sigma

    def solver(self, steps: int) -> Solver:
        return Euler(self, torch.from_numpy(np.linspace(self.timesteps - 1, 0, steps).round().astype(np.int64)))

    def described(self) -> bytes:
        content: bytes = self.scheduler.sigmas.numpy().tobytes()
        return b"flow" + content


@dataclass(frozen=True)
class EulerStep:
    prev_sample: Tensor
    pred_original_sample: Tensor


@dataclass(frozen=True, eq=False)
class Euler:
    """x_s = x_t + (σ_s − σ_t) v, with σ = 0 at the end. Its steps pass through timesteps of the training."""

    flow: Flow
    timesteps: Tensor

    def step(self, answer: Tensor, t: Tensor, x: Tensor) -> EulerStep:
        following = self.timesteps[self.timesteps < t.cpu()]
        now = float(self.flow.sigmas(t.view(1)))
        then = float(self.flow.sigmas(following[:1])) if len(following) else 0.0
        return EulerStep(x + (then - now) * answer, x - now * answer)


def noise_process_of(scheduler: Any, source: str) -> NoiseProcess:
    """What a scheduler of diffusers stands for; refuses answers that are not understood."""
    if isinstance(scheduler, FlowMatchEulerDiscreteScheduler):
        # One that has drawn a picture has only the σ of its steps left.
        return Flow(FlowMatchEulerDiscreteScheduler.from_config(scheduler.config))
    kind = getattr(scheduler.config, "prediction_type", None)
    if kind is None or not hasattr(scheduler, "alphas_cumprod"):
        raise UsageError(
            f"{source} has a {type(scheduler).__name__}: only schedulers like DDPMScheduler and "
            "FlowMatchEulerDiscreteScheduler are supported"
        )
    if kind not in PREDICTION_TYPES:
        raise UsageError(f"{source} predicts {kind!r}: only {' and '.join(PREDICTION_TYPES)} are supported")
    return Diffusion(scheduler)
