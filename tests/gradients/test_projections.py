"""Inner products survive projection: no bias, the variance that theory promises, fixed by seed and names."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dtrak.contracts import Projection
from dtrak.errors import UsageError
from dtrak.gradients.projections import (
    PROJECTIONS,
    Shapes,
    add_rows_by_index,
    add_rows_by_slices,
    make_projection,
    sizes_of,
)

SHAPES: Shapes = {"conv.weight": (7, 10, 10), "conv.bias": (7,), "out.weight": (13, 10)}
D = sum(sizes_of(SHAPES).values())


def project(projection: Projection, gradients: Tensor, shapes: Shapes = SHAPES) -> Tensor:
    out = torch.zeros(len(gradients), projection.dim)
    for name, part in zip(shapes, gradients.split(list(sizes_of(shapes).values()), dim=1), strict=True):
        projection.add(out, name, part.clone())
    return out


@pytest.mark.parametrize("kind", PROJECTIONS)
def test_projection_is_linear_and_additive(kind: str) -> None:
    projection = make_projection(kind, 64, SHAPES, seed=0)
    g, h = torch.randn(2, 3, D, generator=torch.Generator().manual_seed(0))

    def check(found: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)

    check(project(projection, 2 * g + h), 2 * project(projection, g) + project(projection, h))
    once = project(projection, g)
    projection.add(once, "out.weight", g[:, -130:].clone())
    check(once, project(projection, g) + project(projection, torch.cat([0 * g[:, :-130], g[:, -130:]], 1)))


@pytest.mark.parametrize("kind", PROJECTIONS)
def test_projection_is_fixed_by_seed_and_names(kind: str) -> None:
    g = torch.randn(2, D, generator=torch.Generator().manual_seed(0))
    first = project(make_projection(kind, 64, SHAPES, seed=3), g)
    assert torch.equal(first, project(make_projection(kind, 64, SHAPES, seed=3), g))
    if kind == "identity":
        assert torch.equal(first, g)
        return
    assert not torch.allclose(first, project(make_projection(kind, 64, SHAPES, seed=4), g))
    if kind == "factored":
        return  # it has a place of its own for each parameter
    # A parameter's share does not depend on which others are there.
    alone, share = (torch.zeros(2, 64) for _ in range(2))
    make_projection(kind, 64, {"out.weight": (13, 10)}, seed=3).add(alone, "out.weight", g[:, -130:].clone())
    make_projection(kind, 64, SHAPES, seed=3).add(share, "out.weight", g[:, -130:].clone())
    assert torch.equal(alone, share)


@pytest.mark.parametrize("kind", ["sketch", "dense"])
@pytest.mark.parametrize("structure", ["random", "the same everywhere", "one spike"])
def test_inner_products_have_no_bias_and_the_promised_variance(kind: str, structure: str) -> None:
    """E[Pᵀg·Pᵀh] = g·h and Var ≤ (‖g‖²‖h‖² + (g·h)²)/k; for a sketch less, as entries of one row never meet."""
    k, trials = 32, 1500
    random = np.random.default_rng(0)
    g = {"random": random.normal(size=D), "the same everywhere": np.ones(D), "one spike": np.eye(D)[5]}[structure]
    h = random.normal(size=D) + 0.5 * g
    pair = torch.from_numpy(np.stack([g, h])).float()
    products = np.empty(trials)
    for seed in range(trials):
        a, b = project(make_projection(kind, k, SHAPES, seed), pair)
        products[seed] = float(a @ b)
    exact, bound = g @ h, (g @ g * (h @ h) + (g @ h) ** 2) / k
    assert abs(products.mean() - exact) < 4 * np.sqrt(bound / trials)
    # The sample variance of so many trials is within 20% of the true one.
    assert products.var() < 1.2 * bound
    if kind == "sketch" and structure == "random":
        assert products.var() > 0.8 * bound * (1 - k / D)


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 200), k=st.integers(1, 70), seed=st.integers(0, 5))
def test_sketch_is_the_matrix_that_its_docstring_describes(size: int, k: int, seed: int) -> None:
    """Every input lands in exactly one bucket with a sign, and no two of one row of k in the same."""
    matrix = project(make_projection("sketch", k, {"w": (size,)}, seed), torch.eye(size), {"w": (size,)}).numpy()
    assert (np.abs(matrix).sum(1) == 1).all()
    assert ((matrix == 0) | (np.abs(matrix) == 1)).all()
    buckets = np.abs(matrix).argmax(1)
    for start in range(0, size, k):
        row = buckets[start : start + k]
        assert len(set(row)) == len(row)


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 200), k=st.integers(1, 70), images=st.integers(1, 3), seed=st.integers(0, 99))
def test_slices_and_indices_add_the_same_rows(size: int, k: int, images: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    values = torch.from_numpy(random.integers(-9, 9, size=(images, size)).astype(np.float32))
    starts = random.integers(k, size=-(-size // k)).tolist()
    by_slices, by_index = torch.ones(images, k), torch.ones(images, k)
    add_rows_by_slices(by_slices, values, starts)
    add_rows_by_index(by_index, values, starts, rows_at_once=2)
    assert torch.equal(by_slices, by_index)


def test_unknown_projection_is_named() -> None:
    with pytest.raises(UsageError, match=r"'sktech'.*sketch, factored, dense"):
        make_projection("sktech", 8, SHAPES, 0)
