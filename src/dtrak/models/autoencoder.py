"""Between images and latents: diffusers' AutoencoderKL, whose encoder gives a Gaussian for every image.

z ~ N(μ(x), diag σ(x)²) in training, its mode μ(x) in gradients and evaluation, both in the network's scale
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from diffusers import AutoencoderKL
from torch import Tensor

from dtrak.models.fingerprints import digest_of


@dataclass(frozen=True, eq=False)
class Autoencoder:
    network: AutoencoderKL

    @property
    def channels(self) -> tuple[int, int]:
        """Of an image and of its latents."""
        return int(self.network.config.in_channels), int(self.network.config.latent_channels)

    @property
    def reduction(self) -> int:
        """How many pixels a side one of the latents stands for."""
        return int(2 ** (len(self.network.config.block_out_channels) - 1))

    @torch.no_grad()
    def moments(self, images: Tensor) -> Tensor:
        """μ and σ of images [B, 3, H, W] in [−1, 1]: [B, 2, C, h, w]."""
        posterior = self.network.encode(images.to(self.network.device)).latent_dist
        mean = (posterior.mean - self._shift) * self._scale
        return torch.stack([mean, posterior.std * self._scale], dim=1)

    def encode(self, images: Tensor) -> Tensor:
        """The mode of the latents, [B, C, h, w]."""
        return self.moments(images)[:, 0]

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Images [B, 3, H, W], about in [−1, 1]."""
        images: Tensor = self.network.decode(latents / self._scale + self._shift).sample
        return images

    @cached_property
    def fingerprint(self) -> str:
        return digest_of(self.network)

    @property
    def _scale(self) -> float:
        return float(self.network.config.scaling_factor)

    @property
    def _shift(self) -> float:
        return float(self.network.config.shift_factor or 0.0)
