"""What is attributed: a network that predicts noise, the schedule it was trained with, and the shape of its images.

    x_t = √ᾱ_t x + √(1−ᾱ_t) ε,        ε_θ(x_t, t) = the network's answer, turned into noise where it predicts
    v = √ᾱ_t ε − √(1−ᾱ_t) x instead.

Everything after this file sees ε_θ only. Any `nn.Module` that maps (x_t, t) to a prediction can be wrapped.
"""

import hashlib
import json
import re
from dataclasses import dataclass

import torch
from diffusers import DDIMScheduler, DDPMScheduler
from torch import Tensor, nn

from dtrak.errors import UsageError

PREDICTION_TYPES = ("epsilon", "v_prediction")


@dataclass(frozen=True, eq=False)
class DiffusionModel:
    """A noise predictor ε_θ with its schedule."""

    network: nn.Module  # (x_t [B, C, H, W], t [B]) → [B, C, H, W], as a tensor or as the field `sample`
    scheduler: DDPMScheduler
    shape: tuple[int, int, int]  # (C, H, W) of one image
    source: str = "a wrapped module"  # what the user typed, for messages

    def __post_init__(self) -> None:
        kind = self.scheduler.config.prediction_type
        if kind not in PREDICTION_TYPES:
            raise UsageError(f"{self.source} predicts {kind!r}: only {' and '.join(PREDICTION_TYPES)} are supported")

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def timesteps(self) -> int:
        """T, the length of the noise schedule."""
        return int(self.scheduler.config.num_train_timesteps)

    def to(self, device: str | torch.device) -> "DiffusionModel":
        self.network.to(device)
        return self

    def signal_and_noise(self, timesteps: Tensor) -> tuple[Tensor, Tensor]:
        """√ᾱ_t and √(1−ᾱ_t), each [B, 1, 1, 1]."""
        alphas = self.scheduler.alphas_cumprod.to(timesteps.device)[timesteps].view(-1, 1, 1, 1)
        return alphas.sqrt(), (1 - alphas).sqrt()

    def add_noise(self, clean: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        signal, sigma = self.signal_and_noise(timesteps)
        return signal * clean + sigma * noise

    def predict(self, noisy: Tensor, timesteps: Tensor) -> Tensor:
        """The network's own answer: ε or v, [B, C, H, W]."""
        answer = self.network(noisy, timesteps)
        return answer if isinstance(answer, Tensor) else answer.sample

    def predict_noise(self, noisy: Tensor, timesteps: Tensor) -> Tensor:
        """ε_θ(x_t, t) whatever the network predicts, [B, C, H, W]."""
        answer = self.predict(noisy, timesteps)
        if self.scheduler.config.prediction_type == "epsilon":
            return answer
        signal, sigma = self.signal_and_noise(timesteps)
        return signal * answer + sigma * noisy

    def training_target(self, clean: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """What the network is trained to answer, [B, C, H, W]."""
        if self.scheduler.config.prediction_type == "epsilon":
            return noise
        signal, sigma = self.signal_and_noise(timesteps)
        return signal * noise - sigma * clean

    def elbo_weights(self, timesteps: Tensor) -> Tensor:
        """β_t² / (2 σ_t² α_t (1−ᾱ_t)) with σ_t² = β_t, [B]."""
        betas = self.scheduler.betas.to(timesteps.device)[timesteps]
        alphas_cumprod = self.scheduler.alphas_cumprod.to(timesteps.device)[timesteps]
        weights: Tensor = betas / (2 * (1 - betas) * (1 - alphas_cumprod))
        return weights

    def ddim(self, steps: int) -> DDIMScheduler:
        """diffusers' DDIM solver over this model's schedule."""
        if not 1 <= steps <= self.timesteps:
            raise UsageError(f"{steps} steps of DDIM: {self.source} takes from 1 to {self.timesteps}")
        scheduler = DDIMScheduler.from_config(self.scheduler.config)
        scheduler.set_timesteps(steps)
        return scheduler

    def parameters(self, pattern: str | None = None) -> dict[str, nn.Parameter]:
        """The parameters whose name contains a match of the regular expression `pattern`; all of them by default."""
        named = dict(self.network.named_parameters())
        if pattern is None:
            return named
        try:
            chosen = {name: value for name, value in named.items() if re.search(pattern, name)}
        except re.error as error:
            raise UsageError(f"the parameter pattern {pattern!r} is not a regular expression: {error}") from None
        if not chosen:
            parts = sorted({name.split(".")[0] for name in named})
            raise UsageError(f"no parameter's name matches {pattern!r}: the model has {', '.join(parts)}")
        return chosen

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with any weight, layer or setting of the network and the schedule."""
        digest = hashlib.blake2b(digest_size=8)
        config = {key: value for key, value in getattr(self.network, "config", {}).items() if key[0] != "_"}
        digest.update(repr(self.network).encode())
        digest.update(json.dumps([config, self.shape], sort_keys=True, default=str).encode())
        digest.update(self.scheduler.config.prediction_type.encode())
        digest.update(self.scheduler.alphas_cumprod.numpy().tobytes())
        for name, value in self.network.state_dict().items():
            digest.update(name.encode())
            digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def check_fits(self, shape: tuple[int, int, int], source: str) -> None:
        """Refuse images of another shape than the model's own, and say what would fit."""
        if shape == self.shape:
            return
        expected, found = (f"{w}×{h} pixels with {c} channel{'s' * (c > 1)}" for c, h, w in (self.shape, shape))
        channels, height, width = self.shape
        remedies = []
        if shape[1:] != self.shape[1:]:
            remedies.append(f"--size {height}" if height == width else f"images of {width}×{height}")
        if shape[0] != channels:
            remedies.append("images in colour" if channels == 3 else "grey images")
        raise UsageError(
            f"{source} holds images of {found}, but {self.source} was made for {expected}: "
            f"give {' and '.join(remedies)}"
        )
