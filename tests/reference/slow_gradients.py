"""Noised copies of images and their gradients, one at a time by autograd, in float64. It reads files and knows
diffusers and torch, but nothing of dtrak."""

import re
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import blake2b
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import DDPMScheduler, UNet2DModel
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
Picture = tuple[Tensor, int]  # an image [C, H, W] in [−1, 1] and its class

BETA = np.linspace(1e-4, 0.02, 1000)  # of DDPM
KEPT = np.cumprod(1 - BETA)  # ᾱ_t
LATER_LAYERS = r"^(mid_block|up_blocks|conv_norm_out|conv_out)\."


@dataclass(frozen=True)
class Asked:
    """A question, with the names of `dtrak.attribute`."""

    model: Path
    train: Path
    queries: Path
    checkpoints: Path
    retrained: Path
    timesteps: int | str = 2
    draws: int = 1
    seed: int = 0
    parameters: str | None = None
    objective: str | None = None
    damping: float | str = "auto"
    checkpoint_count: int = 4
    step: int | None = None
    ddim_steps: int = 5
    batch_size: int | None = None

    def options(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in ("model", "train", "queries")}

    def means(self, objective: str, images: Path, model: Path | None = None) -> Array:
        """φ of every image: the mean of the gradients of its copies at K evenly spaced timesteps, [N, d]."""
        found = [gradients(model or self.model, images, objective, *copy, self.seed) for copy in self.uniform]
        return np.mean(found, axis=0)[:, chosen(self.model, self.parameters or "")]

    def apart(self, objective: str, images: Path, model: Path | None = None, usual: str = "") -> Array:
        """φ_c of every copy at K timesteps between which equal shares of √ᾱ lie, [N, C, d]."""
        found = [gradients(model or self.model, images, objective, *copy, self.seed) for copy in self.visible]
        return np.stack(found, 1)[:, :, chosen(self.model, self.parameters or usual)]

    @property
    def uniform(self) -> list[tuple[int, int]]:
        """The timestep and the draw of every copy."""
        if isinstance(self.timesteps, str):
            return [(int(t), draw) for t in self.timesteps.split(",") for draw in range(self.draws)]
        return list(product(range(0, 1000, 1000 // self.timesteps)[: self.timesteps], range(self.draws)))

    @property
    def visible(self) -> list[tuple[int, int]]:
        if isinstance(self.timesteps, str):
            return self.uniform
        past = np.cumsum(np.sqrt(KEPT)) / np.sqrt(KEPT).sum()
        steps = [int(np.argmax(past >= (i + 0.5) / self.timesteps)) for i in range(self.timesteps)]
        return list(product(steps, range(self.draws)))


def hashed(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def stream(*names: int | str) -> np.random.Generator:
    """The random numbers of some names: these are the key of Philox, where a text counts as 64 bits of its hash."""
    key = [hashed(name) if isinstance(name, str) else name for name in names]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


def gaussian(shape: tuple[int, ...], *names: int | str) -> Tensor:
    return torch.from_numpy(stream(*names).standard_normal(shape, dtype=np.float32)).double()


@cache
def opened(model: Path) -> tuple[UNet2DModel, str]:
    """A network in eval mode, and what it predicts."""
    network = UNet2DModel.from_pretrained(model / "unet").double().eval()
    return network, DDPMScheduler.from_pretrained(model / "scheduler").config.prediction_type


@cache
def chosen(model: Path, parameters: str) -> NDArray[np.bool_]:
    """Which numbers of a gradient belong to parameters whose names match, [d]."""
    named = opened(model)[0].named_parameters()
    return np.concatenate([np.full(value.numel(), bool(re.search(parameters, name))) for name, value in named])


@cache
def pictures(path: Path) -> list[Picture]:
    with np.load(path) as arrays:
        pixels = torch.from_numpy(arrays["images"]).double().permute(0, 3, 1, 2)
        return list(zip(pixels / 127.5 - 1, arrays["labels"].tolist(), strict=True))


def noise_in(model: Path, noisy: Tensor, t: int, label: int) -> Tensor:
    """ε_θ(x_t, t); a network that predicts v = √ᾱ ε − √(1−ᾱ) x says it in other words."""
    network, kind = opened(model)
    told = {} if network.config.num_class_embeds is None else {"class_labels": torch.tensor([label])}
    answer = network(noisy[None], t, **told).sample[0]
    return answer if kind == "epsilon" else KEPT[t] ** 0.5 * answer + (1 - KEPT[t]) ** 0.5 * noisy


def noised(picture: Picture, t: int, draw: int, seed: int) -> tuple[Tensor, Tensor]:
    """x_t = √ᾱ_t x + √(1−ᾱ_t) ε and ε, which is the same for all images."""
    noise = gaussian(tuple(picture[0].shape), seed, t, draw)
    return KEPT[t] ** 0.5 * picture[0] + (1 - KEPT[t]) ** 0.5 * noise, noise


def predicted(model: Path, picture: Picture, t: int, draw: int, seed: int) -> tuple[Tensor, Tensor]:
    """ε_θ(x_t, t) and ε of a noised copy."""
    noisy, noise = noised(picture, t, draw, seed)
    return noise_in(model, noisy, t, picture[1]), noise


def value_of(objective: str, predicted: Tensor, noise: Tensor, t: int) -> Tensor:
    simple, square = (predicted - noise).square().mean(), predicted.square().mean()
    if objective.startswith("interpolated"):
        eta = float(objective.removeprefix("interpolated(").removesuffix(")"))
        return eta * square + (1 - eta) * (simple - square)
    return {
        "simple": simple,
        "elbo": simple * BETA[t] ** 2 / (2 * BETA[t] * (1 - BETA[t]) * (1 - KEPT[t])),
        "square": square,
        "avg": predicted.mean(),
        "l1": predicted.abs().sum(),
        "l2": predicted.square().sum().sqrt(),
        "linf": predicted.abs().max(),
    }[objective]


def gradient(model: Path, value: Tensor) -> Array:
    """∇_θ of a value, [d], of all parameters."""
    found = torch.autograd.grad(value, list(opened(model)[0].parameters()))
    return torch.cat([one.flatten() for one in found]).numpy()


@cache
def gradients(model: Path, images: Path, objective: str, t: int, draw: int, seed: int) -> Array:
    """The gradient of one copy of every image, [N, d]."""
    copies = [predicted(model, picture, t, draw, seed) for picture in pictures(images)]
    return np.stack([gradient(model, value_of(objective, *copy, t)) for copy in copies])


@torch.no_grad()
def ddim(model: Path, seed: int, steps: int, label: int) -> dict[int, Tensor]:
    """x̂_0 at each t on the way from x_T, which is the noise of the seed, by DDIM; the last one is the picture.

    x̂_0 = (x_t − √(1−ᾱ_t) ε_θ) / √ᾱ_t, clipped to [−1, 1];  x_s = √ᾱ_s x̂_0 + √(1−ᾱ_s) ε_θ at the next timestep s
    """
    x, estimates, stride = gaussian((1, 8, 8), seed, "x_T"), {}, 1000 // steps
    for t in range((steps - 1) * stride, -1, -stride):
        noise = noise_in(model, x, t, label)
        estimates[t] = ((x - (1 - KEPT[t]) ** 0.5 * noise) / KEPT[t] ** 0.5).clamp(-1, 1)
        ahead = KEPT[t - stride] if t else 1.0
        x = ahead**0.5 * estimates[t] + (1 - ahead) ** 0.5 * noise
    return estimates
