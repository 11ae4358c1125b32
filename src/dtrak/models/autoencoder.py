"""An autoencoder of diffusers turns images into latents and back.

    AutoencoderKL     its encoder gives a Gaussian N(μ(x), diag σ(x)²): training draws from it, and gradients and
                      evaluation use its mode μ(x)
    VQModel           its encoder gives one latent, and its decoder takes the nearest entries of a codebook (σ = 0)
    AutoencoderDC     its encoder gives one latent (σ = 0)

Latents are in the scale of the network that denoises them.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from diffusers import AutoencoderDC, AutoencoderKL, VQModel
from torch import Tensor

from dtrak.errors import UsageError
from dtrak.models.fingerprints import digest_of

PIXELS_AT_ONCE = 4 * 512 * 512


def pictures_in_a_pass(height: int, width: int) -> int:
    """Return how many images of this size go through the autoencoder at once."""
    return max(1, PIXELS_AT_ONCE // (height * width))


@dataclass(frozen=True, eq=False)
class Autoencoder:
    """The encoder and decoder of a latent model."""

    network: AutoencoderKL | VQModel | AutoencoderDC

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
        if hasattr(encoded, "latent_dist"):
            mean, deviation = encoded.latent_dist.mean.float(), encoded.latent_dist.std.float()
        else:
            mean = (encoded.latents if isinstance(self.network, VQModel) else encoded.latent).float()
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

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with any weight or setting."""
        return digest_of(self.network)

    @property
    def _scale(self) -> Tensor:
        """What latents are multiplied with: one number, or one for each channel, [1, C or 1, 1, 1]."""
        scale = torch.tensor(float(self.network.config.scaling_factor), device=self.network.device)
        deviations = self._of_channels("latents_std")
        return scale.view(1, 1, 1, 1) if deviations is None else scale / deviations

    @property
    def _shift(self) -> Tensor:
        """What is subtracted from latents before, [1, C or 1, 1, 1]."""
        means = self._of_channels("latents_mean")
        if means is not None:
            return means
        return torch.tensor(float(self.network.config.get("shift_factor") or 0.0), device=self.network.device)

    def _of_channels(self, name: str) -> Tensor | None:
        """Return a setting that some autoencoders have for each channel, [1, C, 1, 1]."""
        values = self.network.config.get(name)
        return None if values is None else torch.tensor(values, device=self.network.device).view(1, -1, 1, 1)


def as_autoencoder(network: object) -> Autoencoder:
    """Wrap an autoencoder of diffusers; refuse anything else."""
    if not isinstance(network, AutoencoderKL | VQModel | AutoencoderDC):
        raise UsageError(
            f"autoencoder is a {type(network).__name__}: give an AutoencoderKL, a VQModel or an AutoencoderDC"
        )
    return Autoencoder(network.requires_grad_(False).eval())
