"""What the explorer keeps in memory gives the scores of `attribute`, for any λ, any slice and the sum over queries."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dtrak
import tiny
from dtrak.attribution.attribute import question_about
from dtrak.attribution.opened import Opened
from dtrak.attribution.settings import Settings
from dtrak.explorer.exploration import Exploration, Scored
from dtrak.kernels.damping import Damping
from dtrak.methods import METHODS
from dtrak.models.model_source import ModelSource
from dtrak.runs.run import Run
from tiny_benchmark import TRAIN, VALIDATION

QUERIES = VALIDATION.select([3, 0, 2])


@pytest.mark.parametrize("method", ["d-trak", "mixed-trak"])
def test_live_scores_are_those_of_attribute(method: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"timesteps": 2, "projection_dim": 64}
    question = question_about(ModelSource(tiny.unet()), TRAIN, QUERIES, [METHODS[method]], Settings(**settings), None)
    scorer = Exploration(Run(tmp_path), Opened(question, tmp_path), {}, "auto", {})
    scorer.prepare(QUERIES, METHODS[method])
    live = scorer.scored(QUERIES, METHODS[method])
    assert isinstance(live, Scored)
    for damping in ("auto", "spectrum", "0.3", "absolute:0.02"):
        expected = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method, damping=damping, cache=tmp_path, **settings)
        parsed = Damping.parse(damping)
        close = {"rtol": 1e-4, "atol": 1e-5 * np.abs(expected.values).max()}
        np.testing.assert_allclose(live.scores(parsed), expected.values, **close)
        np.testing.assert_allclose(live.scores(parsed, slice(1, 2), slice(4, 9)), expected.values[1:2, 4:9], **close)
        np.testing.assert_allclose(live.total(parsed), expected.values.sum(0), **close)
        own = scorer.self_influence(METHODS[method], parsed)
        np.testing.assert_allclose(own, expected.self_influence, rtol=1e-4)
