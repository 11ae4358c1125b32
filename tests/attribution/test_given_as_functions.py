"""Objectives, projections and encoders that Python code gives as functions, in this process and on workers."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

import dtrak
import tiny
from dtrak.engines import make_engine
from dtrak.errors import UsageError
from dtrak.features.encoders import ENCODERS, Encoder
from dtrak.gradients.objectives import OBJECTIVES
from dtrak.gradients.projecting import PROJECTIONS
from dtrak.gradients.projections import Identity, Projection, Shapes
from dtrak.registry import Registry

TRAIN = dtrak.load_images("digits:train").select(range(12))
QUERIES = dtrak.load_images("digits:validation").select([5, 3, 8])
SETTINGS: dict[str, Any] = {"timesteps": 1, "damping": 0.1}


def squared(predicted: Tensor, noise: Tensor, elbo_weights: Tensor) -> Tensor:
    return predicted.square().flatten(1).mean(1)


def unchanged(dim: int, shapes: Shapes, seed: int) -> Projection:
    return Identity(dim, shapes, seed)


@dataclass
class Pixels:
    name: str

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        return pixels.reshape(len(pixels), -1).astype(np.float32) / 127.5 - 1


def flat_pixels(name: str, device: str) -> Encoder:
    return Pixels(name)


@pytest.fixture(autouse=True)
def own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test adds is gone after it."""
    registries: tuple[Registry[Any], ...] = (OBJECTIVES, PROJECTIONS, ENCODERS)
    for registry in registries:
        monkeypatch.setattr(registry, "_known", dict(registry))
        monkeypatch.setattr(registry, "_added", set())


@pytest.mark.parametrize("engine", ["process", "pool"])
def test_functions_give_the_scores_of_their_like_by_name(engine: str) -> None:
    by_name = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, objective="square", projection="identity", **SETTINGS)
    workers = make_engine(engine, workers=1)
    found = dtrak.attribute(
        tiny.unet(), TRAIN, QUERIES, objective=squared, projection=unchanged, engine=workers, **SETTINGS
    )
    np.testing.assert_array_equal(found.values, by_name.values)


def test_an_encoder_is_a_function_of_a_name_and_a_device() -> None:
    by_pixels = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method="raw-pixel-cosine")
    found = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method="clip-cosine", encoder=flat_pixels)
    np.testing.assert_allclose(found.values, by_pixels.values, rtol=1e-5, atol=1e-6)


def test_two_functions_cannot_have_one_name() -> None:
    def square(predicted: Tensor, noise: Tensor, elbo_weights: Tensor) -> Tensor:
        return predicted.flatten(1).sum(1)

    with pytest.raises(UsageError, match="there is another objective called 'square' already"):
        dtrak.attribute(tiny.unet(), TRAIN, QUERIES, objective=square, **SETTINGS)
