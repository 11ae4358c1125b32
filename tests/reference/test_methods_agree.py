"""`dtrak.attribute` against every method by its definition: they differ by at most 1e-4 of the largest score."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dtrak
from dtrak.methods import METHODS
from reference import slow_methods
from reference.cases import CASES, every_second_pixel, question, write_files

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


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_the_definitions(case: str, files: Path) -> None:
    methods, options = CASES[case]
    asked = question(files, **options)
    paths = [str(path) for path in (asked.model, asked.train, asked.queries)]
    settings = {"projection": "identity", "encoder": every_second_pixel, **asked.options()}
    found, errors = dtrak.attribute(*paths, methods, **settings), {}
    for name in methods:
        expected = slow_methods.METHODS[name](asked)
        errors[name] = np.abs(found[name].values - expected).max() / np.abs(expected).max()
        if name in OF_ITSELF:
            expected = np.diag(slow_methods.METHODS[name](replace(asked, queries=asked.train)))
            errors[f"{name} of itself"] = np.abs(found[name].self_influence - expected).max() / expected.max()
    assert {name: error for name, error in errors.items() if not error < TOLERANCE.get(name, 1e-4)} == {}
