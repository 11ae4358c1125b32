"""Methods that were published after the paper, against their formulas written out: gradients by autograd, one copy at a
time, and matrices that are inverted as they are."""

from pathlib import Path
from typing import Any

import numpy as np

import dtrak
import tiny
from definitions import EXACT, QUERIES, Array, assert_close, exact_gradient
from dtrak.models import ddpm
from tiny_benchmark import TRAIN

STEPS = (250, 750)  # the middles of two equal intervals
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
