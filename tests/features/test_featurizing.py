"""What `featurize` decides before it computes: whose noise an image has, and how many threads a worker takes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from dtrak import load_images
from dtrak.devices import torch_threads
from dtrak.engines.jobs import ThisProcess
from dtrak.features.spec import Spec
from featurized import featurize

DIGITS = load_images("digits:train")


def test_noise_of_an_images_own_is_named_by_its_pixels(tmp_path: Path) -> None:
    """Not by its set, its id or its place: the same image has the same features everywhere, and is computed once."""
    model, spec = tiny.unet(), Spec(timesteps="uniform:2", noise="per-image", projection="identity")
    first = featurize(model, DIGITS.select([0, 1]), ["square"], spec, tmp_path)["square"].numpy()
    renamed = replace(DIGITS.select([2, 1, 0]), ids=np.array(["a", "b", "c"]))
    elsewhere = featurize(model, renamed, ["square"], spec, tmp_path / "elsewhere")["square"].numpy()
    np.testing.assert_allclose(elsewhere[[2, 1]], first, rtol=1e-4, atol=1e-6)
    beside = featurize(model, renamed, ["square"], spec, tmp_path)["square"].numpy()
    np.testing.assert_array_equal(beside[[2, 1]], first)
    shared = featurize(model, DIGITS.select([0]), ["square"], replace(spec, noise="shared"), tmp_path)["square"].numpy()
    assert np.linalg.norm(first[0] - shared[0]) > 0.01 * np.linalg.norm(first[0])


def test_workers_take_as_many_threads_as_the_user_leaves_this_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("dtrak.devices.ACTIVATION_BYTES_PER_THREAD", 1)  # so that every pass could use all threads
    seen = []

    class Watched(ThisProcess):
        def run(self, work: Any, context: Any, jobs: Any, threads: int = 1, *where: Any) -> Iterator[Any]:
            seen.append(threads)
            return super().run(work, context, jobs, threads, *where)

    images, settings = DIGITS.select(range(2)), Spec(timesteps="uniform:1")
    for threads in (1, 2):
        with torch_threads(threads):
            featurize(tiny.unet(), images, ["square"], settings, tmp_path, f"{threads}", Watched())
    assert seen == [1, 2]
