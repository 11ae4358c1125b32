"""What methods that were published after the paper keep, share and refuse; their formulas are in tests/reference."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dtrak
import tiny
from dtrak.attribution.answer import score
from dtrak.attribution.formula_inputs import inputs_of
from dtrak.attribution.opened import Opened
from dtrak.attribution.question import Question
from dtrak.attribution.settings import Settings
from dtrak.errors import UsageError
from dtrak.explorer.exploration import Scored
from dtrak.images.images import ImageSource
from dtrak.kernels.damping import Damping
from dtrak.methods import METHODS, nda
from dtrak.models.model_source import ModelSource
from tiny_benchmark import TRAIN, VALIDATION

QUERIES = VALIDATION.select([3, 0, 2])
SMALL = "conv_in|conv_out"


# Diffusion-ReTrac


# NDA


def test_nda_shares_a_probability_and_does_not_depend_on_the_size_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    found = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method="nda", timesteps=2)
    np.testing.assert_allclose(found.values.sum(1), 1, rtol=1e-5)
    for name in ("KEPT_BYTES", "PRODUCT_BYTES"):
        monkeypatch.setattr(nda, name, 1)
    again = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method="nda", timesteps=2)
    np.testing.assert_allclose(again.values, found.values, rtol=1e-4)


def test_nda_finds_the_image_that_a_query_is_a_part_of() -> None:
    """With little noise, all patches of an image come from this image."""
    found = dtrak.attribute(tiny.unet(), TRAIN, TRAIN.select([4, 0, 7]), method="nda", timesteps="20,")
    assert found.values.argmax(1).tolist() == [4, 0, 7]


def test_nda_does_not_look_at_the_network() -> None:
    one, other = (
        dtrak.attribute(tiny.unet(seed=seed), TRAIN, QUERIES, method="nda", timesteps=2, noise="per-image")
        for seed in (0, 1)
    )
    np.testing.assert_array_equal(one.values, other.values)
    assert not np.array_equal(one.values, dtrak.attribute(tiny.unet(), TRAIN, QUERIES, "nda", timesteps=2).values)


@pytest.mark.parametrize(("side", "pixels"), [(8, 3), (16, 3), (32, 7), (64, 13)])
def test_patches_grow_with_the_image(side: int, pixels: int) -> None:
    assert nda.side_of(torch.zeros(1, 3, side, side)) == pixels


# DAS


def test_residuals_are_kept_and_belong_to_their_noise(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"method": "das", "cache": tmp_path, "parameters": SMALL, "timesteps": 2}
    first, again = (dtrak.attribute(tiny.unet(), TRAIN, QUERIES, **asked).values for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert len(list(tmp_path.glob("residuals-*"))) == 1
    for other in ({"seed": 1}, {"noise": "per-image"}):
        assert not np.allclose(dtrak.attribute(tiny.unet(), TRAIN, QUERIES, **asked | other).values, first)
    assert len(list(tmp_path.glob("residuals-*"))) == 3


def test_the_sum_of_squared_scores_is_taken_query_by_query(tmp_path: Path) -> None:
    das, settings = METHODS["das"], Settings(timesteps=2, parameters=SMALL, damping=0.1)
    question = Question(ModelSource(tiny.unet()), ImageSource(TRAIN), ImageSource(QUERIES), (das,), settings)
    opened = Opened(question, tmp_path)
    scored = Scored(das, list(inputs_of(opened, das)))
    (whole,), _, _ = score(opened, das, [Damping.parse(0.1)])
    np.testing.assert_allclose(scored.scores(Damping.parse(0.1)), whole, rtol=1e-5)
    np.testing.assert_allclose(scored.total(Damping.parse(0.1)), whole.sum(0), rtol=1e-5)


# EK-FAC


def test_gradients_that_no_disk_can_hold_are_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10**6, 10**6, 10**5))
    with pytest.raises(UsageError, match=r"11,621 parameters take .* GB on the disk: give fewer --parameters"):
        dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method="ek-fac", timesteps=1)
