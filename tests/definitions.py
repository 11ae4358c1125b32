"""Methods written out from their definitions: gradients one image and timestep at a time by autograd, explicit inverses
in float64."""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import dtrak
import tiny
from dtrak.noise import gaussian
from tiny_benchmark import TRAIN, VALIDATION

Array = NDArray[np.float64]
Copy = tuple[Tensor, int, int]  # a clean image, its timestep and the draw of its noise

QUERIES = VALIDATION.select([3, 0, 2])
LAMBDA = 0.01
EXACT: dict[str, Any] = {"timesteps": 2, "projection": "identity", "damping": f"absolute:{LAMBDA}"}


def schedule() -> Array:
    """ᾱ_t of DDPM: β rises linearly from 1e-4 to 0.02."""
    return np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))


def loss(model: dtrak.DiffusionModel, copies: Iterable[Copy], objective: str = "simple") -> Tensor:
    """The mean over copies of mean (ε_θ − ε)², of mean ε_θ², or of mean ε_θ."""
    model.network.eval()
    losses = []
    for clean, t, draw in copies:
        noise = gaussian(model.shape, 0, t, draw).to(clean.dtype)
        signal, sigma = schedule()[t] ** 0.5, (1 - schedule()[t]) ** 0.5
        noisy = signal * clean + sigma * noise
        answer = model.network(noisy[None], torch.tensor([t])).sample[0]
        is_noise = model.scheduler.config.prediction_type == "epsilon"
        predicted = answer if is_noise else signal * answer + sigma * noisy
        of_objective = {"simple": (predicted - noise).square(), "square": predicted.square(), "avg": predicted}
        losses.append(of_objective[objective].mean())
    return torch.stack(losses).mean()


def exact_gradient(
    model: dtrak.DiffusionModel, copies: Iterable[Copy], objective: str = "simple", parameters: str = ""
) -> Array:
    """∇_θ of that mean for one image, [d]."""
    chosen = [value for name, value in model.network.named_parameters() if re.search(parameters, name)]
    gradients = torch.autograd.grad(loss(model, copies, objective), chosen)
    return torch.cat([gradient.flatten() for gradient in gradients]).double().numpy()


def exact_features(
    model: dtrak.DiffusionModel, images: dtrak.Images, objective: str = "simple", parameters: str = ""
) -> Array:
    """Φ [B, d] at the two timesteps of `EXACT`."""
    return np.stack(
        [
            exact_gradient(model, [(clean, 0, 0), (clean, 500, 0)], objective, parameters)
            for clean in images.tensor(range(len(images)))
        ]
    )


@cache
def features_of_seed(seed: int, objective: str = "simple", parameters: str = "") -> tuple[Array, Array]:
    """Φ of the training images and of the queries under the tiny model of this seed."""
    model = tiny.unet(seed=seed)
    return exact_features(model, TRAIN, objective, parameters), exact_features(model, QUERIES, objective, parameters)


def dots(train: Array, queries: Array) -> Array:
    return np.array([[query @ n for n in train] for query in queries])


def cosines(train: Array, queries: Array) -> Array:
    return np.array([[query @ n / np.sqrt((query @ query) * (n @ n)) for n in train] for query in queries])


def kernel(train: Array, queries: Array, damping: float = LAMBDA) -> Array:
    return queries @ np.linalg.inv(train.T @ train + damping * np.eye(train.shape[1])) @ train.T


def small_kernel(train: Array, queries: Array, damping: float = LAMBDA) -> Array:
    """The same, as (ΦᵀΦ + λI)⁻¹Φᵀ = Φᵀ(ΦΦᵀ + λI)⁻¹, for more numbers than can be inverted."""
    return queries @ train.T @ np.linalg.inv(train @ train.T + damping * np.eye(len(train)))


def relative(train: Array, queries: Array) -> Array:
    inverse = np.linalg.inv(train.T @ train + LAMBDA * np.eye(train.shape[1]))
    return np.array([[query @ inverse @ n / np.linalg.norm(inverse @ n) for n in train] for query in queries])


def renormalized(train: Array, queries: Array) -> Array:
    inverse = np.linalg.inv(train.T @ train + LAMBDA * np.eye(train.shape[1]))
    return np.array([[query @ inverse @ n / np.linalg.norm(n) for n in train] for query in queries])


def assert_close(found: NDArray[Any], expected: Array) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
