"""Methods that were published after the paper, against their formulas written out: gradients by autograd, one copy at a
time, and matrices that are inverted as they are."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dtrak
import tiny
from definitions import (
    EXACT,
    LAMBDA,
    QUERIES,
    Array,
    assert_close,
    exact_gradient,
    features_of_seed,
    loss,
    schedule,
)
from dtrak.attribution.preparing import prepare
from dtrak.attribution.scoring import DampedScores, scores_for
from dtrak.errors import UsageError
from dtrak.features.curvature import directions_of
from dtrak.features.inputs import model_inputs
from dtrak.features.residuals import residuals_of
from dtrak.features.settings import FeatureSettings
from dtrak.gradients.copies import timesteps_of
from dtrak.inputs.settings import Settings
from dtrak.kernels.damping import Damping
from dtrak.methods import patches
from dtrak.models import ddpm
from dtrak.noise import gaussian
from tiny_benchmark import TRAIN

STEPS = timesteps_of(tiny.unet(), 2, "visible")  # tests/gradients/test_copies.py
SMALL = "conv_in|conv_out"


def gradients_of_copies(
    model: dtrak.DiffusionModel, images: dtrak.Images, objective: str = "simple", parameters: str = ""
) -> Array:
    """The gradient of every copy, [images, copies, d]."""
    return np.array(
        [
            [exact_gradient(model, [(clean, t, 0)], objective, parameters) for t in STEPS]
            for clean in images.tensor(range(len(images)))
        ]
    )


# Diffusion-ReTrac


def test_retrac_scales_every_copy_to_unit_length_at_every_checkpoint(tmp_path: Path) -> None:
    expected = []
    for seed in (1, 2):
        model = tiny.unet(seed=seed)
        ddpm.save(model, tmp_path / f"step-{seed}")
        train, queries = (gradients_of_copies(model, images) for images in (TRAIN, QUERIES))
        scores = np.zeros((len(queries), len(train)))
        for x, of_query in enumerate(queries):
            for n, of_image in enumerate(train):
                for g in of_query:
                    for h in of_image:
                        scores[x, n] += g @ h / np.linalg.norm(g) / np.linalg.norm(h) / len(of_query) / len(of_image)
        expected.append(scores)
    found = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method="retrac", checkpoints=tmp_path, **EXACT)
    assert_close(found.values, np.mean(expected, axis=0))


def test_retrac_has_its_own_way_with_copies_whatever_step_trak_is_asked_for(tmp_path: Path) -> None:
    ddpm.save(tiny.unet(seed=1), tmp_path / "step-1")
    asked: dict[str, Any] = {"checkpoints": tmp_path, "parameters": SMALL} | EXACT
    plain, changed = (
        dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method="retrac", **asked, **more)
        for more in ({}, {"kernel": "per-copy", "length": "own"})
    )
    np.testing.assert_array_equal(plain.values, changed.values)


# NDA


def posterior_of_patches(clean: Array, train: Array, t: int, side: int, scale: int) -> Array:
    """Σ over places of the weights of all training patches for one noised copy, [N]: plain loops in float64."""
    signal, sigma = schedule()[t] ** 0.5, (1 - schedule()[t]) ** 0.5
    noised = signal * clean + sigma * gaussian(tiny.SHAPE, 0, t, 0).double().numpy()

    def patches_of(image: Array) -> dict[tuple[int, int], Array]:
        """Patches by place; NaN beyond the border."""
        height, width = image.shape[1] // scale, image.shape[2] // scale
        small = image.reshape(-1, height, scale, width, scale).mean((2, 4)) * scale
        padded = np.pad(small, ((0, 0), (side // 2,) * 2, (side // 2,) * 2), constant_values=np.nan)
        return {(i, j): padded[:, i : i + side, j : j + side] for i in range(height) for j in range(width)}

    of_images = [patches_of(signal * image) for image in train]
    totals = np.zeros(len(train))
    asked = patches_of(noised)
    for patch in asked.values():
        weights = np.zeros(len(train))
        for n, found in enumerate(of_images):
            for other in found.values():
                if (np.isnan(patch) == np.isnan(other)).all():
                    weights[n] += np.exp(-np.nansum((patch - other) ** 2) / (2 * sigma**2))
        totals += weights / weights.sum() / len(asked)
    return totals


def test_nda_is_the_posterior_of_training_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    """With blocks as small as they can be, and a probability that is shared among all training images."""
    train, queries = (images.tensor(range(len(images))).double().numpy() for images in (TRAIN, QUERIES))
    expected = [
        [
            np.mean([posterior_of_patches(clean, train, t, 3, scale) for scale in (1, 2)], axis=0)
            for t in (STEPS[0], STEPS[1])
        ]
        for clean in queries
    ]
    found = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method="nda", timesteps=2)
    assert_close(found.values, np.mean(expected, axis=1))
    np.testing.assert_allclose(found.values.sum(1), 1, rtol=1e-5)
    for name in ("KEPT_BYTES", "PRODUCT_BYTES"):
        monkeypatch.setattr(patches, name, 1)
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
    assert patches.side_of(torch.zeros(1, 3, side, side)) == pixels


# DAS


def test_das_is_the_squared_change_of_the_output_without_the_image() -> None:
    model, damping = tiny.unet(), 1e-4
    train, queries = (gradients_of_copies(model, images, "avg", SMALL) for images in (TRAIN, QUERIES))
    clean, expected = TRAIN.tensor(range(len(TRAIN))), np.zeros((len(QUERIES), len(TRAIN)))
    for copy, t in enumerate(STEPS):
        features = train[:, copy]
        inverse = np.linalg.inv(features.T @ features + damping * np.eye(features.shape[1]))
        for n, feature in enumerate(features):
            with torch.no_grad():
                residual = float(loss(model, [(clean[n], t, 0)])) ** 0.5
            for x, query in enumerate(queries[:, copy]):
                change = query @ inverse @ feature * residual / (1 - feature @ inverse @ feature)
                expected[x, n] += change**2 / len(STEPS)
    asked = EXACT | {"damping": f"absolute:{damping}"}
    found = dtrak.attribute(model, TRAIN, QUERIES, method="das", parameters=SMALL, **asked)
    assert_close(found.values, expected)


def test_residuals_are_kept_and_belong_to_their_noise(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"method": "das", "cache": tmp_path, "parameters": SMALL, "timesteps": 2}
    first, again = (dtrak.attribute(tiny.unet(), TRAIN, QUERIES, **asked).values for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert len(list(tmp_path.glob("residuals-*.npy"))) == 1
    inputs = model_inputs(tiny.unet(), TRAIN)
    for settings in (FeatureSettings(timesteps=2, seed=1), FeatureSettings(timesteps=2, noise="per-image")):
        residuals_of(tiny.unet(), inputs, settings, tmp_path)
    assert len(list(tmp_path.glob("residuals-*.npy"))) == 3


def test_the_sum_of_squared_scores_is_taken_query_by_query(tmp_path: Path) -> None:
    task, (das,) = prepare(tiny.unet(), TRAIN, QUERIES, ["das"], Settings(timesteps=2, parameters=SMALL), tmp_path)
    scored = DampedScores.of(task, das)
    (whole,) = scores_for(task, das, [Damping.parse(0.1)])
    np.testing.assert_allclose(scored.scores(Damping.parse(0.1)), whole, rtol=1e-5)
    np.testing.assert_allclose(scored.total(Damping.parse(0.1)), whole.sum(0), rtol=1e-5)


# EK-FAC


@pytest.mark.parametrize("parameters", [SMALL, "conv_norm_out"])
def test_ek_fac_scores_whole_gradients_with_the_gauss_newton_matrix(parameters: str, tmp_path: Path) -> None:
    model = tiny.unet()
    train, queries = features_of_seed(0, "simple", parameters)
    settings = FeatureSettings(timesteps=2, parameters=parameters)
    directions = directions_of(model, model_inputs(model, TRAIN), settings)
    rotated = directions.rotated(torch.eye(train.shape[1])).double().numpy()
    matrix = rotated * directions.eigenvalues.double().numpy() @ rotated.T
    inverse = np.linalg.inv(matrix + LAMBDA * np.eye(len(matrix)))
    asked = EXACT | {"projection": "sketch", "cache": tmp_path, "parameters": parameters}
    found = dtrak.attribute(model, TRAIN, QUERIES, method=["ek-fac", "trak"], **asked)
    assert_close(found["ek-fac"].values, queries @ inverse @ train.T)
    own = found["ek-fac"].self_influence
    assert own is not None
    assert_close(own, np.diag(train @ inverse @ train.T))


def test_the_rule_of_ek_fac_is_a_tenth_of_the_mean_eigenvalue(tmp_path: Path) -> None:
    asked = {"timesteps": 2, "parameters": SMALL, "cache": tmp_path}
    by_rule, given = (
        dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method="ek-fac", damping=one, **asked) for one in ("auto", 0.1)
    )
    assert_close(by_rule.values, given.values)
    assert by_rule.damping is not None
    assert by_rule.damping.relative == pytest.approx(0.1)


def test_gradients_that_no_disk_can_hold_are_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10**6, 10**6, 10**5))
    with pytest.raises(UsageError, match=r"11,621 parameters take .* GB on the disk: give fewer --parameters"):
        dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method="ek-fac", timesteps=1)
