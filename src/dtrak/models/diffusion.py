"""What is attributed: a network that removes noise, the process that adds it, and the shape of what they work on.

Most models work on pixels. Latent ones have an autoencoder between images and what is denoised, text-conditional ones
an encoder for prompts. Any `nn.Module` that maps (x_t, t) to a prediction can be wrapped.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler
from torch import Tensor, nn

from dtrak.errors import UsageError
from dtrak.models.autoencoder import Autoencoder
from dtrak.models.conditions import Condition
from dtrak.models.fingerprints import digest_of
from dtrak.models.noise_process import NoiseProcess, Solver, noise_process_of
from dtrak.models.prompts import Prompts

LORA = "lora_"  # in the names of its parameters
EVERY_PARAMETER = "all"  # what selects all of them


@dataclass(frozen=True, eq=False)
class DiffusionModel:
    """A noise predictor with its process."""

    network: nn.Module  # (x_t [B, C, H, W], t [B], what it is told) → [B, C, H, W], as a tensor or as `sample`
    scheduler: DDPMScheduler | FlowMatchEulerDiscreteScheduler
    shape: tuple[int, int, int]  # (C, H, W) of x_t
    source: str = "a wrapped module"  # what the user typed, for messages
    autoencoder: Autoencoder | None = None
    prompts: Prompts | None = None
    base: str | None = None  # the pipeline that its LoRA belongs to
    family: str = "ddpm"  # that saves it
    process: NoiseProcess = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "process", noise_process_of(self.scheduler, self.source))

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def timesteps(self) -> int:
        """T, the length of the noise schedule."""
        return self.process.timesteps

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        if self.autoencoder is None:
            return self.shape
        _, height, width = self.shape
        factor = self.autoencoder.reduction
        return self.autoencoder.channels[0], factor * height, factor * width

    def to(self, device: str | torch.device) -> "DiffusionModel":
        self.network.to(device)
        if self.autoencoder is not None:
            self.autoencoder.network.to(device)
        if self.prompts is not None:
            self.prompts.encoder.to(device)
        return self

    def denoiser(self) -> "DiffusionModel":
        """The model without its encoders of images and prompts: all that gradients need."""
        return replace(self, autoencoder=None, prompts=None)

    def add_noise(self, clean: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        return self.process.add_noise(clean, noise, timesteps)

    def predict(self, noisy: Tensor, timesteps: Tensor, condition: Condition | None = None) -> Tensor:
        """The network's own answer, [B, C, H, W]."""
        answer = self.network(noisy, self.process.time(timesteps), **(condition or {}))
        return answer if isinstance(answer, Tensor) else answer.sample

    def predict_target(self, noisy: Tensor, timesteps: Tensor, condition: Condition | None = None) -> Tensor:
        """What the network takes `target` for, whatever it answers, [B, C, H, W]: ε_θ(x_t, t), or v_θ of a flow."""
        return self.process.in_terms_of_target(self.predict(noisy, timesteps, condition), noisy, timesteps)

    def target(self, clean: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """ε, or v of a flow, [B, C, H, W]."""
        return self.process.target(clean, noise, timesteps)

    def training_target(self, clean: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """What the network is trained to answer, [B, C, H, W]."""
        return self.process.training_target(clean, noise, timesteps)

    def elbo_weights(self, timesteps: Tensor) -> Tensor:
        """What L_Simple is weighted with in the ELBO, [B]."""
        return self.process.elbo_weights(timesteps)

    def solver(self, steps: int) -> Solver:
        """The way from noise to a picture in so many steps."""
        if not 1 <= steps <= self.timesteps:
            raise UsageError(f"{steps} steps of DDIM: {self.source} takes from 1 to {self.timesteps}")
        return self.process.solver(steps)

    def decode(self, x: Tensor) -> Tensor:
        """Pictures [B, C, H, W] in [−1, 1] from what was denoised."""
        return (x if self.autoencoder is None else self.autoencoder.decode(x)).clamp(-1, 1)

    def encode(self, pictures: Tensor) -> Tensor:
        """What stands for pictures [B, C, H, W] in [−1, 1] in the space that is denoised."""
        return pictures if self.autoencoder is None else self.autoencoder.encode(pictures)

    @property
    def has_lora(self) -> bool:
        return _has_lora(self.network)

    def parameters(self, pattern: str | None = None) -> dict[str, nn.Parameter]:
        """Those whose name contains a match of a regular expression, or "all".

        By default those of the LoRA, if there is one; else all.
        """
        return chosen_parameters(self.network, pattern)

    @property
    def trained_weights(self) -> dict[str, Tensor]:
        """What training changes: the LoRA, if there is one; else all there is."""
        state = self.network.state_dict()
        return {name: value for name, value in state.items() if LORA in name} if self.has_lora else state

    def load_trained_weights(self, weights: Mapping[str, Tensor]) -> None:
        missing = self.trained_weights.keys() ^ weights.keys()
        if missing:
            raise KeyError(min(missing))
        self.network.load_state_dict(dict(weights), strict=False)

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with any weight, layer or setting of the model and its process."""
        parts = [repr(self.shape).encode(), self.process.described()]
        if self.autoencoder is not None:
            parts.append(self.autoencoder.fingerprint.encode())
        if self.prompts is not None:
            parts.append(self.prompts.encoder.fingerprint.encode())
        return digest_of(self.network, *parts)

    def fitted_to(self, shape: tuple[int, int, int]) -> "DiffusionModel":
        """The model for images of this shape, as far as it can be: latent ones take any size that they can halve.

        A module that was wrapped keeps the shape that its owner gave.
        """
        config = getattr(self.network, "config", None)
        if config is None or self.autoencoder is None or shape[0] != self.autoencoder.channels[0]:
            return self
        halvings = len(getattr(config, "block_out_channels", [0])) - 1
        unit = self.autoencoder.reduction * 2**halvings
        if shape[1] % unit or shape[2] % unit:
            return self
        latent = (self.shape[0], shape[1] // self.autoencoder.reduction, shape[2] // self.autoencoder.reduction)
        return replace(self, shape=latent)

    def check_fits(self, shape: tuple[int, int, int], source: str) -> None:
        """Refuse images of another shape than the model's own, and say what would fit."""
        if shape == self.image_shape:
            return
        expected, found = (f"{w}×{h} pixels with {c} channel{'s' * (c > 1)}" for c, h, w in (self.image_shape, shape))
        channels, height, width = self.image_shape
        remedies = []
        if shape[1:] != self.image_shape[1:]:
            remedies.append(f"--size {height}" if height == width else f"images of {width}×{height}")
        if shape[0] != channels:
            remedies.append("images in colour" if channels == 3 else "grey images")
        raise UsageError(
            f"{source} holds images of {found}, but {self.source} was made for {expected}: "
            f"give {' and '.join(remedies)}"
        )


def chosen_parameters(network: nn.Module, pattern: str | None) -> dict[str, nn.Parameter]:
    """Those of a network whose name contains a match of a regular expression; by default as `DiffusionModel` has it."""
    named = dict(network.named_parameters())
    if pattern is None:
        pattern = LORA if _has_lora(network) else EVERY_PARAMETER
    if pattern == EVERY_PARAMETER:
        return named
    try:
        chosen = {name: value for name, value in named.items() if re.search(pattern, name)}
    except re.error as error:
        raise UsageError(f"the parameter pattern {pattern!r} is not a regular expression: {error}") from None
    if not chosen:
        parts = sorted({name.split(".")[0] for name in named})
        raise UsageError(f"no parameter's name matches {pattern!r}: the model has {', '.join(parts)}")
    return chosen


def _has_lora(network: nn.Module) -> bool:
    return any(LORA in name for name, _ in network.named_parameters())
