"""The choice of timesteps against the noise schedules of diffusers."""

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler
from hypothesis import given
from hypothesis import strategies as st

import dtrak
import tiny
from dtrak.gradients.timesteps import select_timesteps, timesteps_of


def test_timesteps_as_in_the_paper_and_the_middles_of_intervals() -> None:
    assert select_timesteps(10, 1000) == tuple(range(0, 1000, 100))
    assert select_timesteps("middle:4", 1000) == (125, 375, 625, 875)
    assert select_timesteps("cumulative:3", 1000) == (0, 1, 2)
    assert select_timesteps("7,", 1000) == (7,)


@pytest.mark.parametrize("schedule", ["linear", "squaredcos_cap_v2"])
def test_equal_shares_of_what_is_visible_lie_between_timesteps(schedule: str) -> None:
    scheduler = DDPMScheduler(beta_schedule=schedule)
    model = dtrak.DiffusionModel(tiny.unet().network, scheduler, tiny.unet().shape)
    visible = scheduler.alphas_cumprod.sqrt()
    torch.testing.assert_close(model.visible, visible, rtol=1e-5, atol=1e-6)
    chosen = timesteps_of(model, 5, apart=True)
    assert chosen == timesteps_of(model, "visible:5")
    past = [float(visible[: t + 1].sum() / visible.sum()) for t in chosen]
    np.testing.assert_allclose(past, [0.1, 0.3, 0.5, 0.7, 0.9], atol=2e-3)


def test_methods_that_average_have_the_timesteps_of_the_paper() -> None:
    assert timesteps_of(tiny.unet(), 10) == tuple(range(0, 1000, 100))


@given(total=st.integers(1, 60), data=st.data())
def test_any_number_of_visible_timesteps_is_different_and_in_order(total: int, data: st.DataObject) -> None:
    visible = data.draw(st.lists(st.floats(1e-6, 1), min_size=total, max_size=total))
    count = data.draw(st.integers(1, total))
    chosen = select_timesteps(f"visible:{count}", total, visible=visible)
    assert len(chosen) == count
    assert sorted(set(chosen)) == list(chosen)
    assert 0 <= chosen[0] <= chosen[-1] < total
