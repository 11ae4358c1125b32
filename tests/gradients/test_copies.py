"""The choice of timesteps against the noise schedules of diffusers."""

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler
from hypothesis import given
from hypothesis import strategies as st

import dtrak
import tiny
from dtrak.errors import UsageError
from dtrak.gradients.copies import normal_timesteps, select_timesteps, timesteps_of


def test_timesteps_as_in_the_paper() -> None:
    assert select_timesteps(10, 1000) == tuple(range(0, 1000, 100))
    assert select_timesteps("uniform:10", 1000) == tuple(range(0, 1000, 100))
    assert select_timesteps("cumulative:3", 1000) == (0, 1, 2)
    assert select_timesteps("7,", 1000) == (7,)
    assert select_timesteps(" 7, 90", 1000) == (7, 90)


@pytest.mark.parametrize(
    ("written", "normal"),
    [(10, "visible:10"), ("10", "visible:10"), (" uniform:3", "uniform:3"), ("7,", "7,"), ("0, 100,", "0,100")],
)
def test_timesteps_have_a_normal_form_with_the_same_meaning(written: int | str, normal: str) -> None:
    assert normal_timesteps(written, "visible") == normal_timesteps(normal) == normal
    assert select_timesteps(written, 1000, "visible") == select_timesteps(normal, 1000)


@pytest.mark.parametrize("choice", ["middle:4", "visible:", ":4", "3:4", "0,0", "0,1000", "1001", "0", "x"])
def test_timesteps_that_make_no_sense_are_named(choice: str) -> None:
    with pytest.raises(UsageError, match=f"timesteps '{choice}': "):
        select_timesteps(choice, 1000)


@pytest.mark.parametrize("schedule", ["linear", "squaredcos_cap_v2"])
def test_equal_shares_of_what_is_visible_lie_between_timesteps(schedule: str) -> None:
    scheduler = DDPMScheduler(beta_schedule=schedule)
    model = dtrak.DiffusionModel(tiny.unet().network, scheduler, tiny.unet().shape)
    visible = scheduler.alphas_cumprod.sqrt()
    torch.testing.assert_close(model.process.visible, visible, rtol=1e-5, atol=1e-6)
    chosen = timesteps_of(model, 5, "visible")
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
