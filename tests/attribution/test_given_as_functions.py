"""Objectives, projections and encoders that Python code gives as functions, in this process and on workers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from diffusers import DDPMScheduler
from numpy.typing import NDArray
from torch import Tensor

import dtrak
import tiny
from dtrak.contracts import Projection
from dtrak.engines import make_engine
from dtrak.errors import UsageError
from dtrak.features.encoders import ENCODERS, Encoder
from dtrak.gradients.objectives import OBJECTIVES
from dtrak.gradients.projections import PROJECTIONS, Identity, Shapes
from dtrak.registry import Registry

TRAIN = dtrak.load_images("digits:train").select(range(12))
QUERIES = dtrak.load_images("digits:validation").select([5, 3, 8])
SETTINGS: dict[str, Any] = {"timesteps": 1, "damping": 0.1, "projection_dim": 64}


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


@pytest.mark.parametrize("engine", ["process", pytest.param("pool", marks=pytest.mark.slow)])
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


def test_a_function_that_is_written_again_gives_its_own_scores(tmp_path: Path) -> None:
    """Features of the function that had this name before are kept, but not taken for its own."""
    expected = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, objective="square", **SETTINGS)

    def own(predicted: Tensor, noise: Tensor, elbo_weights: Tensor) -> Tensor:
        return predicted.flatten(1).mean(1)

    first = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, objective=own, cache=tmp_path, **SETTINGS)

    def own(predicted: Tensor, noise: Tensor, elbo_weights: Tensor) -> Tensor:  # type: ignore[no-redef]
        return predicted.square().flatten(1).mean(1)

    second = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, objective=own, cache=tmp_path, **SETTINGS)
    np.testing.assert_array_equal(second.values, expected.values)
    assert not np.allclose(first.values, second.values)
    by_lambda = dtrak.attribute(
        tiny.unet(), TRAIN, QUERIES, objective=lambda p, n, w: p.square().flatten(1).mean(1), **SETTINGS
    )
    np.testing.assert_array_equal(by_lambda.values, expected.values)


class Deaf(torch.nn.Module):
    """It takes no condition."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        found: Tensor = self.layer(x)
        return found


def scores(**given: Any) -> Any:
    return dtrak.attribute(tiny.unet(), TRAIN, QUERIES, **SETTINGS | given)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "objective": (lambda: scores(objective=3), "objective is 3: give a name from simple, .*or a function of"),
    "objective's arguments": (lambda: scores(objective=len), r"the function len must take \(predicted, noise, elbo_"),
    "parameters": (lambda: scores(parameters=3), "parameters is 3: give a regular expression, a list of names, or"),
    "parameters' arguments": (lambda: scores(parameters=lambda name: True), r"must take \(name, parameter\)"),
    "parameters' list": (lambda: scores(parameters=[torch.zeros(1)]), r"parameters is \[tensor.*give a regular"),
    "device": (lambda: scores(device="gpu"), "unknown device 'gpu': choose from"),
    "engine": (lambda: scores(engine="pool"), "engine is 'pool': give one that dtrak.engines.make_engine makes"),
    "train": (lambda: dtrak.attribute(tiny.unet(), pandas.DataFrame({"a": [1]}), QUERIES), "train is a DataFrame"),
    "scheduler": (lambda: dtrak.DiffusionModel(Deaf(), DDPMScheduler, (1, 8, 8)), "the class DDPMScheduler: give an"),
    "conditioner": (
        lambda: dtrak.DiffusionModel(Deaf(), DDPMScheduler(), (1, 8, 8), conditioner="label"),  # type: ignore[arg-type]
        'conditioner is a str: give {"y": "label"}',
    ),
    "condition": (
        lambda: dtrak.attribute(
            dtrak.DiffusionModel(Deaf(), DDPMScheduler(), (1, 8, 8), conditioner={"y": "label"}), TRAIN, QUERIES
        ),
        r"the network Deaf cannot be called with x_t \[1, 1, 8, 8\], time \[1\], y \[1\]: .*'y' \(an adapter",
    ),
    "model": (lambda: dtrak.load_model(None), "model is a NoneType: give a diffusers folder or a hub id"),  # type: ignore[arg-type]
    "lora": (lambda: dtrak.load_model("x", lora=5), "lora is a int: give a folder"),  # type: ignore[arg-type]
    "prompt": (lambda: dtrak.load_model("x", prompt=5), "prompt is a int: give a template"),  # type: ignore[arg-type]
    "images": (lambda: dtrak.load_images(torch.zeros(3)), "images is a Tensor: .*dtrak.images_from takes"),  # type: ignore[arg-type]
    "run": (lambda: dtrak.open_run(5), "run is a int: give the folder of a run"),  # type: ignore[arg-type]
    "count": (lambda: scores().top("5"), "count '5': it must be a whole number"),
}


@pytest.mark.parametrize("argument", WRONG)
def test_wrong_types_get_one_line_that_names_the_argument(argument: str) -> None:
    call, says = WRONG[argument]
    with pytest.raises(UsageError, match=says) as refused:
        call()
    assert "\n" not in str(refused.value)


def test_images_from_a_folder_get_the_models_size(tmp_path: Path) -> None:
    """As on the command line; objects are taken as they are."""
    large = np.repeat(np.repeat(TRAIN.pixels(range(12)), 2, 1), 2, 2)  # [12, 16, 16, 1]
    np.savez(tmp_path / "large.npz", images=large)
    found = dtrak.attribute(tiny.unet(), str(tmp_path / "large.npz"), QUERIES, parameters="conv_out", **SETTINGS)
    assert found.values.shape == (3, 12)
    with pytest.raises(UsageError, match=r"train holds images of 16×16 .*: give --size 8 \(size=8 in Python"):
        dtrak.attribute(tiny.unet(), large, QUERIES, **SETTINGS)


def test_timesteps_may_be_a_list() -> None:
    expected = scores(timesteps="100,300", parameters="conv_out")
    np.testing.assert_array_equal(scores(timesteps=[100, 300], parameters="conv_out").values, expected.values)
