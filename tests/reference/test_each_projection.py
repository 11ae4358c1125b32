"""Each projection, through the inner products of projected gradients, which are the scores of `gradient-dot`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler
from numpy.typing import NDArray
from torch import Tensor, nn

import dtrak

KINDS = ("sketch", "factored", "dense")
PIXELS = np.random.default_rng(0).integers(96, 128, (8, 8, 8, 1), dtype=np.uint8)


class Linear(nn.Module):
    """Matrices and vectors, 672 numbers in all, with nothing in between: the gradient of its mean is affine in x."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mix, self.out = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 1), nn.Linear(64, 8)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.out(self.mix(self.conv(x)).transpose(1, 2).flatten(2))[:, None]


def scores(folder: Path, kind: str, method: str = "gradient-dot", queries: Any = PIXELS, **options: Any) -> Any:
    """Scores of all images for the queries: of gradient-dot, Pᵀg · Pᵀh."""
    torch.manual_seed(0)
    model = dtrak.DiffusionModel(Linear(), DDPMScheduler(), (1, 8, 8))
    paths = [str(folder / f"{name}.npz") for name in ("train", "queries")]
    for path, pixels in zip(paths, (PIXELS, queries), strict=True):
        np.savez(path, images=pixels)
    options = {"projection": kind, "projection_dim": 200, "timesteps": 1, "damping": 0.1} | options
    return dtrak.attribute(model, *paths, method, **options).values.astype(np.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_linear(kind: str, tmp_path: Path) -> None:
    """Scores of d-trak are linear in the query's projected gradient."""
    one, other = PIXELS[:2].astype(int)
    queries = np.stack([one, other, 3 * one - 2 * other]).astype(np.uint8)
    found = scores(tmp_path, kind, "d-trak", queries, objective="avg")
    np.testing.assert_allclose(found[2], 3 * found[0] - 2 * found[1], atol=1e-4 * np.abs(found).max())


@pytest.mark.parametrize("kind", KINDS)
def test_its_seed_says_all(kind: str, tmp_path: Path) -> None:
    first, again, other = (scores(tmp_path, kind, projection_seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3 * first.max()


@pytest.mark.parametrize("method", ["gradient-dot", "step-trak"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_image_is_projected_in_a_batch_as_it_is_alone(kind: str, method: str, tmp_path: Path) -> None:
    alone, in_batches = (scores(tmp_path, kind, method, batch_size=size) for size in (1, 5))
    np.testing.assert_allclose(in_batches, alone, atol=1e-4 * alone.max())
    one = scores(tmp_path, kind, method, PIXELS[4:5])
    np.testing.assert_allclose(one, alone[4:5], atol=1e-4 * alone.max())


@pytest.mark.parametrize("kind", KINDS)
def test_inner_products_are_kept_in_the_mean(kind: str, tmp_path: Path) -> None:
    found: NDArray[np.float64] = np.stack([scores(tmp_path, kind, projection_seed=seed) for seed in range(24)])
    exact, error = scores(tmp_path, "identity"), found.std(0, ddof=1) / 24**0.5
    assert (np.abs(found.mean(0) - exact) < 5 * error).all()
    assert 0 < error.max() < 0.05 * exact.max()
