"""Sampling trajectories against DDIM written out from ᾱ, and which pictures journey-trak cannot follow."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import dtrak
import tiny
from dtrak.errors import UsageError
from dtrak.features.trajectories import Trajectories
from dtrak.models.sampling import BATCH, sample, to_pixels
from reference import slow_gradients
from tiny_benchmark import TRAIN

STEPS, SEEDS = 5, (7, 3, 11)
PASSED = (800, 600, 400, 200, 0)
SETTINGS: dict[str, Any] = {
    "timesteps": 2,
    "projection": "identity",
    "damping": "absolute:0.01",
    "ddim_steps": STEPS,
}


def ddim(model: dtrak.DiffusionModel, folder: Path, seed: int) -> dict[int, Tensor]:
    """x̂_0 at each t, by the definition."""
    if not (folder / "model").exists():
        model.network.save_pretrained(folder / "model" / "unet")
        model.scheduler.save_pretrained(folder / "model" / "scheduler")
    return {t: found.float() for t, found in slow_gradients.ddim(folder / "model", seed, STEPS, 0).items()}


def drawn(model: dtrak.DiffusionModel, folder: Path, seeds: tuple[int, ...] = SEEDS, **columns: Any) -> dtrak.Images:
    """Pictures as `dtrak generate` draws them, with their seeds beside them unless `columns` say otherwise."""
    pixels = to_pixels(sample(model, seeds, STEPS).pictures).numpy()
    np.savez(folder / "drawn.npz", images=pixels, **({"seed": np.array(seeds)} | columns))
    return dtrak.load_images(str(folder / "drawn.npz"))


def test_the_loop_passes_through_the_timesteps_and_ends_at_the_picture(tmp_path: Path) -> None:
    model = tiny.unet()
    pictures = drawn(model, tmp_path).tensor(range(3))
    for seed, picture in zip(SEEDS, pictures, strict=True):
        estimates = ddim(model, tmp_path, seed)
        assert tuple(estimates) == PASSED
        assert (127.5 * (estimates[0] - picture)).abs().max() < 0.51  # of rounding


@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction"])
def test_estimates_are_those_of_ddim(tmp_path: Path, prediction_type: str) -> None:
    model = tiny.unet(prediction_type)
    trajectories = Trajectories(model, drawn(model, tmp_path), STEPS)
    assert trajectories.timesteps == PASSED
    found = trajectories.inputs.tensor([2, 0])
    assert found.shape == (2, STEPS, 1, 8, 8)
    for row, seed in zip(found, (SEEDS[2], SEEDS[0]), strict=True):
        torch.testing.assert_close(row, torch.stack([*ddim(model, tmp_path, seed).values()]), rtol=1e-3, atol=1e-4)
    assert (found.abs() == 1).any(), "nothing was clipped"


def test_the_whole_journey_is_the_mean_of_its_steps(tmp_path: Path) -> None:
    """With as many noises at each step. All questions share the training images' features."""
    model = tiny.unet()
    pictures = drawn(model, tmp_path)
    changes = {"timesteps": 1, "draws": 10, "parameters": "conv_out", "cache": tmp_path / "cache"}
    asked: dict[str, Any] = SETTINGS | {"method": "journey-trak"} | changes
    whole = dtrak.attribute(model, TRAIN, pictures, **asked)
    steps = [dtrak.attribute(model, TRAIN, pictures, step=t, **asked).values for t in PASSED]
    np.testing.assert_allclose(
        whole.values, np.mean(steps, axis=0, dtype=np.float64), rtol=1e-3, atol=1e-4 * abs(whole.values).max()
    )
    assert len([*(tmp_path / "cache").glob("train-*")]) == 1
    assert len([*(tmp_path / "cache").glob("trajectories-*")]) == 1 + STEPS


def test_a_picture_among_the_training_images_is_its_own_top_proponent(tmp_path: Path) -> None:
    """At the last step, where x̂_0 is the picture; with the same ten noises for training images."""
    model = tiny.unet()
    pictures = drawn(model, tmp_path)
    np.savez(tmp_path / "train.npz", images=np.concatenate([TRAIN.pixels(range(12)), pictures.pixels(range(3))]))
    found = dtrak.attribute(
        model,
        str(tmp_path / "train.npz"),
        pictures,
        method="journey-trak",
        step=0,
        ddim_steps=STEPS,
        timesteps="0,",
        draws=10,
        projection="identity",
        damping=1e-4,
    )
    assert found.values.argmax(1).tolist() == [12, 13, 14]
    np.testing.assert_allclose(found.values[range(3), range(12, 15)], 1, atol=0.1)


def test_pictures_of_a_later_batch_keep_their_rows(tmp_path: Path) -> None:
    model, seeds = tiny.unet(), tuple(range(100, 102 + BATCH))
    trajectories = Trajectories(model, drawn(model, tmp_path, seeds), STEPS)
    for row in (0, BATCH - 1, BATCH, BATCH + 1):
        expected = torch.stack([*ddim(model, tmp_path, seeds[row]).values()])
        torch.testing.assert_close(trajectories.inputs.tensor([row])[0], expected, rtol=1e-3, atol=1e-4)


# what cannot be followed


def refusal(model: dtrak.DiffusionModel, pictures: dtrak.Images, **changes: Any) -> str:
    with pytest.raises(UsageError) as caught:
        dtrak.attribute(model, TRAIN, pictures, method="journey-trak", **SETTINGS | changes)
    return str(caught.value)


def test_pictures_without_seeds_are_refused() -> None:
    message = refusal(tiny.unet(), TRAIN)
    assert "digits:train has no column 'seed'" in message
    assert "dtrak generate" in message


def test_pictures_of_other_seeds_are_refused_by_name(tmp_path: Path) -> None:
    model = tiny.unet()
    pictures = drawn(model, tmp_path, ids=np.array(["a", "b", "c"]), seed=np.array([7, 12, 11]))
    expected = rf"b of {tmp_path}/drawn.npz is not what a wrapped module draws from seed 12 in 5 steps"
    assert re.fullmatch(expected, refusal(model, pictures))


def test_a_bad_picture_of_a_later_batch_is_named(tmp_path: Path) -> None:
    model, seeds = tiny.unet(), tuple(range(BATCH + 3))
    pictures = drawn(model, tmp_path, seeds, seed=np.array([*seeds[:-1], 999]))
    assert refusal(model, pictures).startswith(f"{BATCH + 2} of ")


def test_pictures_of_another_model_are_refused(tmp_path: Path) -> None:
    assert "is not what" in refusal(tiny.unet(), drawn(tiny.unet(seed=1), tmp_path))


def test_pictures_drawn_in_other_steps_are_refused(tmp_path: Path) -> None:
    model = tiny.unet()
    assert "in 4 steps" in refusal(model, drawn(model, tmp_path), ddim_steps=4)


def test_a_step_after_the_last_is_refused(tmp_path: Path) -> None:
    model = tiny.unet()
    message = refusal(model, drawn(model, tmp_path), step=1000)
    assert message == "step 1000: 5 steps of DDIM pass through 800, 600, … 0"


@pytest.mark.parametrize(("step", "nearest"), [(401, 400), (305, 400), (299, 200), (999, 800), (3, 0)])
def test_the_nearest_step_of_the_trajectory_is_taken_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], step: int, nearest: int
) -> None:
    model = tiny.unet()
    trajectories = Trajectories(model, drawn(model, tmp_path), STEPS, step)
    assert trajectories.timesteps == (nearest,)
    said = f"step {step}: 5 steps of DDIM pass through 800, 600, … 0; {nearest} is taken, which is the nearest"
    assert said in " ".join(capsys.readouterr().err.split())
    expected = ddim(model, tmp_path, SEEDS[0])[nearest]
    torch.testing.assert_close(trajectories.inputs.tensor([0])[0, 0], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("steps", "named"), [(0, "ddim-steps 0"), (1001, "1001 steps of DDIM")])
def test_a_number_of_steps_that_ddim_cannot_take_is_refused(tmp_path: Path, steps: int, named: str) -> None:
    model = tiny.unet()
    assert named in refusal(model, drawn(model, tmp_path), ddim_steps=steps)


@pytest.mark.parametrize("seeds", [["7", "3", "eleven"], [7, 3, -11], [7.0, 3.0, 11.5]])
def test_seeds_that_are_none_are_refused(tmp_path: Path, seeds: list[Any]) -> None:
    model = tiny.unet()
    assert str(seeds[2]) in refusal(model, drawn(model, tmp_path, seed=np.array(seeds)))


def test_pictures_that_cannot_be_followed_are_refused_before_the_work_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny.unet()
    assert "is not what" in refusal(model, drawn(model, tmp_path, seed=np.array([7, 12, 11])))
    assert "features of" not in capsys.readouterr().err
