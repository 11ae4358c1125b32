"""What `featurize` decides before it computes: whose noise an image has, and how many threads a worker takes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tiny
from dtrak import load_images
from dtrak.devices import torch_threads
from dtrak.engines.jobs import ThisProcess
from dtrak.features.spec import Spec
from featurized import featurize

DIGITS = load_images("digits:train")


def test_two_sets_of_images_share_no_noise_of_their_own_even_if_they_share_ids(tmp_path: Path) -> None:
    model, sets = tiny.unet(), {"two": DIGITS.select([0, 1]), "three": DIGITS.select([0, 1, 2])}

    def first_of(noise: str) -> list[NDArray[np.float32]]:
        settings = Spec(timesteps="uniform:2", noise=noise, projection="identity")
        stores = [featurize(model, one, ["square"], settings, tmp_path / noise, name) for name, one in sets.items()]
        return [store["square"].numpy()[0] for store in stores]

    two, three = first_of("shared")
    np.testing.assert_allclose(two, three, rtol=1e-4, atol=1e-6)
    two, three = first_of("per-image")
    assert np.linalg.norm(two - three) > 0.01 * np.linalg.norm(three)


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
