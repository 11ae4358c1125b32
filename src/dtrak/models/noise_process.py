"""How noise is mixed into an image, what a network predicts, and how a solver leads from noise back to an image.

    diffusion:  x_t = √ᾱ_t x + √(1−ᾱ_t) ε,    the network predicts ε, x, or v = √ᾱ_t ε − √(1−ᾱ_t) x;  solver: DDIM
    flow:       x_t = (1−σ_t) x + σ_t ε,        the network predicts v = ε − x;                           solver: Euler

`exploding.py` has two more, in which noise is added to an unchanged image. In all, timesteps are whole numbers from 0,
almost no noise, to T − 1, almost only noise.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from diffusers import DDIMScheduler, DDPMScheduler, FlowMatchEulerDiscreteScheduler
from torch import Tensor

from dtrak.errors import UsageError
from dtrak.models.euler import Euler, evenly_spaced
from dtrak.models.exploding import exploding, is_exploding

PREDICTION_TYPES = ("epsilon", "v_prediction", "sample")


class SolverStep(Protocol):
    """The result of one step of a solver."""

    @property
    def prev_sample(self) -> Tensor:
        """x at the next lower timestep."""

    @property
    def pred_original_sample(self) -> Tensor:
        """x̂_0, the image that x_t is estimated to come from."""


class Solver(Protocol):
    """A solver leads from noise to an image."""

    @property
    def timesteps(self) -> Tensor:
        """The timesteps that it passes through, [steps], falling."""

    @property
    def init_noise_sigma(self) -> float:
        """The standard deviation of the noise that it starts from."""

    def step(self, prediction: Tensor, t: Tensor, x: Tensor, /) -> SolverStep:
        """Take a step from x_t, with what the network predicts for it."""


class NoiseProcess(Protocol):
    """All that objectives, training and sampling need to know about noise. `t` is [B]; images are [B, C, H, W]."""

    @property
    def timesteps(self) -> int:
        """T, the number of timesteps."""

    def add_noise(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Return x_t."""

    def network_input(self, noisy: Tensor, t: Tensor) -> Tensor:
        """Return what the network is given as x_t."""

    def time(self, t: Tensor) -> Tensor:
        """Return the time that the network takes as its argument for the timesteps, [B]."""

    def training_target(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Return what the network is trained to predict."""

    def target(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Return the target of L_Simple: ε of a diffusion, v of a flow."""

    def target_from_prediction(self, prediction: Tensor, noisy: Tensor, t: Tensor) -> Tensor:
        """Turn the network's prediction into an estimate of `target`."""

    def elbo_weights(self, t: Tensor) -> Tensor:
        """Return the weights of L_Simple in the ELBO, [B]."""

    def solver(self, steps: int) -> Solver:
        """Return a solver with so many steps."""

    def fingerprint_bytes(self) -> bytes:
        """Return bytes that change with any setting of the process, for a fingerprint."""


@dataclass(frozen=True, eq=False)
class Diffusion:
    """The noise process of a DDPM."""

    scheduler: DDPMScheduler

    @property
    def timesteps(self) -> int:
        return int(self.scheduler.config.num_train_timesteps)

    def signal_and_noise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return √ᾱ_t and √(1−ᾱ_t), each [B, 1, 1, 1]."""
        alphas = self.scheduler.alphas_cumprod.to(t.device)[t].view(-1, 1, 1, 1)
        return alphas.sqrt(), (1 - alphas).sqrt()

    def add_noise(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        noisy: Tensor = self.scheduler.add_noise(clean, noise, t)
        return noisy

    def network_input(self, noisy: Tensor, t: Tensor) -> Tensor:
        return noisy

    def time(self, t: Tensor) -> Tensor:
        return t

    def training_target(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        kind = self.scheduler.config.prediction_type
        if kind != "v_prediction":
            return noise if kind == "epsilon" else clean
        velocity: Tensor = self.scheduler.get_velocity(clean, noise, t)
        return velocity

    def target(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        return noise

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

    def solver(self, steps: int) -> Solver:
        """Return diffusers' DDIM for this schedule."""
        scheduler = DDIMScheduler.from_config(self.scheduler.config)
        scheduler.set_timesteps(steps)
        solver: Solver = scheduler
        return solver

    def fingerprint_bytes(self) -> bytes:
        kind: str = self.scheduler.config.prediction_type
        content: bytes = self.scheduler.alphas_cumprod.cpu().numpy().tobytes()  # diffusers may have moved them to a GPU
        return kind.encode() + content


@dataclass(frozen=True, eq=False)
class Flow:
    """A rectified flow: x_t moves on a straight line from the image to the noise."""

    scheduler: FlowMatchEulerDiscreteScheduler

    @property
    def timesteps(self) -> int:
        return int(self.scheduler.config.num_train_timesteps)

    def sigmas(self, t: Tensor) -> Tensor:
        """Return σ_t [B, 1, 1, 1]; diffusers lists them from the most noise to the least."""
        rising: Tensor = self.scheduler.sigmas[: self.timesteps].flip(0).to(t.device)
        return rising[t].view(-1, 1, 1, 1)

    def add_noise(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        sigma = self.sigmas(t)
        return (1 - sigma) * clean + sigma * noise

    def network_input(self, noisy: Tensor, t: Tensor) -> Tensor:
        return noisy

    def time(self, t: Tensor) -> Tensor:
        return self.sigmas(t).flatten() * self.timesteps

    def training_target(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        return noise - clean

    def target(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        return noise - clean

    def target_from_prediction(self, prediction: Tensor, noisy: Tensor, t: Tensor) -> Tensor:
        return prediction

    def elbo_weights(self, t: Tensor) -> Tensor:
        """Return (1−σ_t) / σ_t: half the slope of the log signal-to-noise ratio, for a loss in v, [B]."""
        sigma = self.sigmas(t).flatten()
        return (1 - sigma) / sigma

    def solver(self, steps: int) -> Solver:
        return Euler(self, evenly_spaced(self.timesteps, steps))

    def fingerprint_bytes(self) -> bytes:
        content: bytes = self.scheduler.sigmas.numpy().tobytes()
        return b"flow" + content


def noise_process_of(scheduler: Any, source: str) -> NoiseProcess:
    """Return the noise process of a scheduler of diffusers; refuse one that is not supported.

    Schedulers that differ only in how they draw pictures have the same noise process.
    """
    if isinstance(scheduler, type):
        raise UsageError(f"scheduler is the class {scheduler.__name__}: give an object of it, {scheduler.__name__}()")
    config = getattr(scheduler, "config", None)
    if config is None:
        raise UsageError(
            f"scheduler is a {type(scheduler).__name__}: give a scheduler of diffusers, as DDPMScheduler()"
        )
    if is_flow(scheduler):
        # A scheduler that has drawn a picture has lost all σ but those of its steps.
        return Flow(as_flow(scheduler))
    if is_exploding(type(scheduler).__name__):
        return exploding(scheduler)
    if isinstance(scheduler, DDPMScheduler | DDIMScheduler):
        found = scheduler
    elif config.get("beta_schedule") or config.get("trained_betas") is not None:
        found = DDPMScheduler.from_config(config)
    else:
        raise UsageError(
            f"{source} has a {type(scheduler).__name__}: only schedulers that add noise like DDPMScheduler, "
            "FlowMatchEulerDiscreteScheduler, ScoreSdeVeScheduler or EDMEulerScheduler are supported; give one of "
            "these that adds noise as your training did"
        )
    if (kind := found.config.prediction_type) not in PREDICTION_TYPES:
        raise UsageError(f"{source} predicts {kind!r}: only {', '.join(PREDICTION_TYPES)} are supported")
    return Diffusion(found)


def is_flow(scheduler: Any) -> bool:
    """Tell whether a scheduler is that of a flow."""
    return "FlowMatch" in type(scheduler).__name__ or bool(scheduler.config.get("use_flow_sigmas"))


def as_flow(scheduler: Any) -> FlowMatchEulerDiscreteScheduler:
    """Return the scheduler of a flow as Euler's, with the same T and shift."""
    config = scheduler.config
    if config.get("use_flow_sigmas"):
        return FlowMatchEulerDiscreteScheduler(num_train_timesteps=config.num_train_timesteps, shift=config.flow_shift)
    return FlowMatchEulerDiscreteScheduler.from_config(config)


def as_latent(scheduler: Any) -> Any:
    """Return a scheduler for training and attribution of a latent model: latents, unlike pixels, may be beyond ±1."""
    if is_flow(scheduler):
        return as_flow(scheduler)
    if is_exploding(type(scheduler).__name__):
        return scheduler
    return DDPMScheduler.from_config(scheduler.config, clip_sample=False, thresholding=False)
