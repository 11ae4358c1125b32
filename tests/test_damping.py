"""λ by rule, by fraction or as it is: what each comes to, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrak.damping import GRIDS, Damping, damping_of_dimension, effective_dimension
from dtrak.errors import UsageError
from dtrak.kernels import Kernel, decompose
from dtrak.methods.inputs import InMemory


def kernel_of(n: int, k: int, seed: int = 0, scale: float = 1.0) -> Kernel:
    """Of features whose variance falls from one direction to the next, as gradients' does."""
    features = np.random.default_rng(seed).normal(size=(n, k)) * np.arange(1, k + 1) ** -1.5
    return decompose(InMemory((scale * features).astype(np.float32)))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 40), k=st.integers(1, 40), seed=st.integers(0, 20))
def test_the_rule_keeps_as_many_directions_as_the_root_of_the_images(n: int, k: int, seed: int) -> None:
    kernel = kernel_of(n, k, seed)
    found = Damping.parse("auto").absolute(kernel)
    expected = min(n**0.5, min(n, k) / 2)
    hat = found * np.linalg.inv(kernel.train @ kernel.train.T + found * np.eye(n))  # λ(K + λI)⁻¹ = I − K(K + λI)⁻¹
    assert n - np.trace(hat) == pytest.approx(expected, rel=1e-4)


def test_dimension_falls_as_damping_grows_and_each_has_its_damping() -> None:
    kernel = kernel_of(30, 20)
    dimensions = [effective_dimension(kernel, damping) for damping in (1e-6, 1e-2, 1, 1e4)]
    assert dimensions == sorted(dimensions, reverse=True)
    for dimension in (0.5, 3, 9):
        assert effective_dimension(kernel, damping_of_dimension(kernel, dimension)) == pytest.approx(dimension)


@pytest.mark.parametrize("text", ["auto", "0.1"])
def test_scores_do_not_depend_on_the_features_scale(text: str) -> None:
    damping = Damping.parse(text)
    small, large = kernel_of(15, 8), kernel_of(15, 8, scale=100)
    assert damping.absolute(large) == pytest.approx(1e4 * damping.absolute(small), rel=1e-4)


def test_a_fraction_is_one_of_the_mean_eigenvalue() -> None:
    kernel = kernel_of(15, 8)
    assert kernel.mean_eigenvalue == pytest.approx((kernel.train**2).sum() / 15)
    assert Damping.parse(0.25).absolute(kernel) == pytest.approx(0.25 * kernel.mean_eigenvalue)
    assert Damping.parse("absolute:5").absolute(kernel) == 5


def test_the_papers_grid() -> None:
    values = [damping.value for damping in GRIDS["paper"]]
    assert len(values) == 27
    assert values[:4] == [0.01, 0.02, 0.05, 0.1]
    assert values[-1] == 5e6


@pytest.mark.parametrize("damping", ["-1", "0", "nan", "much", "absolute:", "absolute:-2", "absolute:auto"])
def test_damping_that_makes_no_sense_is_named(damping: str) -> None:
    with pytest.raises(UsageError) as caught:
        Damping.parse(damping)
    assert repr(damping) in str(caught.value)
