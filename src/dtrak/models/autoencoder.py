"""An autoencoder of diffusers turns images into latents and back.

    AutoencoderKL     its encoder gives a Gaussian N(μ(x), diag σ(x)²): training draws from it, and gradients and
                      evaluation use its mode μ(x)
    VQModel           its encoder gives one latent, and its decoder takes the nearest entries of a codebook (σ = 0)
    AutoencoderDC     its encoder gives one latent (σ = 0)

Latents are in the scale of the network that denoises them.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dtrak.errors import UsageError
from dtrak.fingerprints import Facts, of_network

PIXELS_AT_ONCE = 4 * 512 * 512


def pictures_in_a_pass(height: int, width: int) -> int:
    """Return how many images of this size go through the autoencoder at once."""
    return max(1, PIXELS_AT_ONCE // (height * width))


@dataclass(frozen=True, eq=False)
class Autoencoder:
    """The encoder and decoder of a latent model."""

    network: Any

    @property
    def facts(self) -> Facts:
        return of_network(self.network)

    @property
    def channels(self) -> tuple[int, int]:
        """The number of channels of an image and of its latents."""
        config = self.network.config
        return int(config.in_channels), int(config.get("vq_embed_dim") or config.latent_channels)

    @property
    def reduction(self) -> int:
        """The width and height, in pixels, of the square that one latent stands for."""
        config = self.network.config
        blocks = config.get("block_out_channels") or config.encoder_block_out_channels
        return int(2 ** (len(blocks) - 1))

    @torch.no_grad()
    def moments(self, images: Tensor) -> Tensor:
        """Return μ and σ, [B, 2, C, h, w], of images [B, 3, H, W] in [−1, 1]."""
        encoded = self.network.encode(images.to(self.network.device, self.network.dtype))
        if "latent_dist" in encoded:
            mean, deviation = encoded.latent_dist.mean.float(), encoded.latent_dist.std.float()
        else:
            mean = encoded[0].float()
            deviation = torch.zeros_like(mean)
        return torch.stack([(mean - self._shift) * self._scale, deviation * self._scale], dim=1)

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
        parts = self.unscaled(latents).to(self.network.dtype).split(pictures_in_a_pass(height, width))
        return torch.cat([self.network.decode(part).sample.float() for part in parts])

    @property
    def _scale(self) -> Tensor:
        """What latents are multiplied with: one number, or one for each channel, [1, C or 1, 1, 1]."""
        return self._of_channels("scaling_factor", 1.0) / self._of_channels("latents_std", 1.0)

    @property
    def _shift(self) -> Tensor:
        """What is subtracted from latents before, [1, C or 1, 1, 1]."""
        name = "latents_mean" if self.network.config.get("latents_mean") is not None else "shift_factor"
        return self._of_channels(name, 0.0)

    def _of_channels(self, name: str, usual: float) -> Tensor:
        """Return a setting that is one number, or one for each channel; `usual` if the autoencoder has none."""
        value = self.network.config.get(name)
        return torch.tensor(usual if value is None else value, device=self.network.device).view(1, -1, 1, 1)


def as_autoencoder(network: object) -> Autoencoder:
    """Wrap an autoencoder of diffusers; refuse anything else."""
    from diffusers import AutoencoderDC, AutoencoderKL, VQModel

    if not isinstance(network, AutoencoderKL | VQModel | AutoencoderDC):
        raise UsageError(
            f"autoencoder is a {type(network).__name__}: give an AutoencoderKL, a VQModel or an AutoencoderDC"
        )
    return Autoencoder(network.requires_grad_(False).eval())
