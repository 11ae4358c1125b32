"""diffusers' AutoencoderKL turns images into latents and back. Its encoder gives a Gaussian for every image.

Training draws z ~ N(μ(x), diag σ(x)²); gradients and evaluation use its mode μ(x). Both are in the network's scale.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from diffusers import AutoencoderKL
from torch import Tensor

from dtrak.models.fingerprints import digest_of

PIXELS_AT_ONCE = 4 * 512 * 512


def pictures_in_a_pass(height: int, width: int) -> int:
    """Return how many images of this size go through the autoencoder at once."""
    return max(1, PIXELS_AT_ONCE // (height * width))


@dataclass(frozen=True, eq=False)
class Autoencoder:
    """The encoder and decoder of a latent model."""

    network: AutoencoderKL

    @property
    def channels(self) -> tuple[int, int]:
        """The number of channels of an image and of its latents."""
        return int(self.network.config.in_channels), int(self.network.config.latent_channels)

    @property
    def reduction(self) -> int:
        """The width and height, in pixels, of the square that one latent stands for."""
        return int(2 ** (len(self.network.config.block_out_channels) - 1))

    @torch.no_grad()
    def moments(self, images: Tensor) -> Tensor:
        """Return μ and σ, [B, 2, C, h, w], of images [B, 3, H, W] in [−1, 1]."""
        posterior = self.network.encode(images.to(self.network.device)).latent_dist
        mean = (posterior.mean - self._shift) * self._scale
        return torch.stack([mean, posterior.std * self._scale], dim=1)

    def encode(self, images: Tensor) -> Tensor:
        """Return the mode of the latents, [B, C, h, w]."""
        return torch.cat([self.moments(part)[:, 0] for part in images.split(pictures_in_a_pass(*images.shape[2:]))])

    def unscaled(self, latents: Tensor) -> Tensor:
        """Return latents in the autoencoder's own scale, as its `latent_dist` has them."""
        return latents / self._scale + self._shift

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Return images [B, 3, H, W], roughly in [−1, 1]; a few at a time, as each takes much memory."""
        height, width = (self.reduction * side for side in latents.shape[2:])
        parts = self.unscaled(latents).split(pictures_in_a_pass(height, width))
        return torch.cat([self.network.decode(part).sample for part in parts])

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with any weight or setting."""
        return digest_of(self.network)

    @property
    def _scale(self) -> float:
        return float(self.network.config.scaling_factor)

    @property
    def _shift(self) -> float:
        return float(self.network.config.shift_factor or 0.0)
