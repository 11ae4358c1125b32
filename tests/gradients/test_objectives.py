"""Each objective against its formula in the paper, and the interpolation against its two ends."""

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler

import tiny
from dtrak.errors import UsageError
from dtrak.gradients.objectives import OBJECTIVES, get_objective

PREDICTED, NOISE = torch.randn(2, 5, 3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
WEIGHTS = torch.rand(5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
P, E = (value.numpy().reshape(5, -1) for value in (PREDICTED, NOISE))

FORMULAS = {
    "simple": ((P - E) ** 2).mean(1),
    "elbo": WEIGHTS.numpy() * ((P - E) ** 2).mean(1),
    "square": (P**2).mean(1),
    "avg": P.mean(1),
    "l1": np.abs(P).sum(1),
    "l2": np.sqrt((P**2).sum(1)),
    "linf": np.abs(P).max(1),
    "interpolated(0.3)": 0.3 * (P**2).mean(1) + 0.7 * (((P - E) ** 2).mean(1) - (P**2).mean(1)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_objective_is_its_formula(name: str) -> None:
    np.testing.assert_allclose(get_objective(name)(PREDICTED, NOISE, WEIGHTS), FORMULAS[name], rtol=1e-12)


def test_every_objective_is_tested() -> None:
    assert set(OBJECTIVES) <= set(FORMULAS)


@pytest.mark.parametrize(("eta", "end", "factor"), [(0.5, "simple", 0.5), (1, "square", 1)])
def test_interpolation_has_the_gradients_of_trak_and_d_trak_at_its_ends(eta: float, end: str, factor: float) -> None:
    def gradient(name: str) -> torch.Tensor:
        predicted = PREDICTED.clone().requires_grad_()
        get_objective(name)(predicted, NOISE, WEIGHTS).sum().backward()
        assert predicted.grad is not None
        return predicted.grad

    torch.testing.assert_close(gradient(f"interpolated({eta})"), factor * gradient(end))


def test_elbo_weights_are_the_papers() -> None:
    scheduler = DDPMScheduler()
    t = np.array([0, 1, 500, 999])
    beta = np.linspace(1e-4, 0.02, 1000)
    alpha_bar = np.cumprod(1 - beta)
    expected = beta[t] ** 2 / (2 * beta[t] * (1 - beta[t]) * (1 - alpha_bar[t]))
    assert scheduler.config.beta_schedule == "linear"
    np.testing.assert_allclose(tiny.unet().process.elbo_weights(torch.from_numpy(t)), expected, rtol=1e-3)


@pytest.mark.parametrize("name", ["squared", "interpolated(2)", "interpolated(x)", "interpolated(0..5)", ""])
def test_unknown_objective_is_named(name: str) -> None:
    with pytest.raises(UsageError, match="choose from simple, elbo") as caught:
        get_objective(name)
    assert repr(name) in str(caught.value)
