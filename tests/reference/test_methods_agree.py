"""`dtrak.attribute` against every method by its definition: they differ by at most 1e-4 of the largest score."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import dtrak
from dtrak.methods import METHODS
from reference import slow_methods
from reference.cases import CASES, FEW, every_second_pixel, question, write_files
from reference.slow_gradients import Asked, opened, pictures, predicted, value_of

TOLERANCE = {"datamodel-lasso": 1e-2}  # scikit-learn stops before the optimum
OF_ITSELF = ("trak", "d-trak", "mixed-trak", "step-trak", "ek-fac", "trak-ensemble", "d-trak-ensemble")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    write_files(folder)
    return folder


def test_every_method_and_objective_is_in_a_case() -> None:
    assert {name for methods, _ in CASES.values() for name in methods} == set(slow_methods.METHODS) == set(METHODS)
    assert {*dtrak.objectives.OBJECTIVES} <= {*CASES, "square"}


def attributed(asked: Asked, methods: list[str]) -> dict[str, dtrak.Scores]:
    paths = [str(path) for path in (asked.model, asked.train, asked.queries)]
    return dtrak.attribute(*paths, methods, projection="identity", encoder=every_second_pixel, **asked.options())


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_the_definitions(case: str, files: Path) -> None:
    methods, options = CASES[case]
    asked = question(files, **options)
    found, errors = attributed(asked, methods), {}
    for name in methods:
        expected = slow_methods.METHODS[name](asked)
        errors[name] = np.abs(found[name].values - expected).max() / np.abs(expected).max()
        if name in OF_ITSELF:
            expected = np.diag(slow_methods.METHODS[name](replace(asked, queries=asked.train)))
            errors[f"{name} of itself"] = np.abs(found[name].self_influence - expected).max() / expected.max()
    assert {name: error for name, error in errors.items() if not error < TOLERANCE.get(name, 1e-4)} == {}


def test_a_step_of_training_lowers_the_querys_loss_by_the_score(files: Path) -> None:
    """θ → θ − η g_n lowers L(x) by η·gradient-dot, and the step η (ΦᵀΦ + λI)⁻¹ g_n lowers it by η·trak."""
    asked = question(files, parameters=FEW, damping="absolute:0.001")
    found, network = attributed(asked, ["gradient-dot", "trak"]), opened(asked.model)[0]
    weights = [*network.conv_norm_out.parameters()]
    before, train = parameters_to_vector(weights).detach(), asked.means("simple", asked.train)

    @torch.no_grad()
    def losses_after(step: np.ndarray) -> np.ndarray:
        vector_to_parameters(before - torch.from_numpy(step), weights)
        values = [
            [value_of("simple", *predicted(asked.model, one, *copy, 0), copy[0]) for copy in asked.uniform]
            for one in pictures(asked.queries)
        ]
        vector_to_parameters(before, weights)
        return np.mean(values, axis=1)

    for method, steps in (("gradient-dot", train), ("trak", slow_methods.preconditioned(train, 0.001, train))):
        for image, step in enumerate(steps):
            size = 1e-4 / np.linalg.norm(step)
            lowered = (losses_after(-size * step) - losses_after(size * step)) / 2 / size
            np.testing.assert_allclose(found[method].values[:, image], lowered, atol=1e-4 * np.abs(lowered).max())
