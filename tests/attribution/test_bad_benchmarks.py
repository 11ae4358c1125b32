"""Benchmark folders and feature stores that are damaged or made by others: one line each, and nothing hangs."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from commands import dtrak
from dtrak.attribution.benchmark_folder import Benchmark
from dtrak.errors import DtrakError, UsageError
from dtrak.evaluation.benchmark_making import RetrainingSettings
from dtrak.features.store import FeatureStore
from dtrak.runs.recipes import Evaluation
from tiny_benchmark import SEEDS, SUBSETS, VALIDATION, write_benchmark

ASKED = ("evaluate", "lds", "--method", "raw-pixel-cosine", "--damping", "auto", "--benchmark", "bench")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmark(tmp_path_factory.mktemp("whole") / "bench")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "bench"))


def array(name: str, values: NDArray[Any]) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / name, values)


def not_finite(value: float) -> NDArray[np.float32]:
    losses = np.ones((SUBSETS, SEEDS, len(VALIDATION)), dtype=np.float32)
    losses[2, 1, 3] = value
    return losses


def promised(folder: Path) -> None:
    """A file of a few bytes whose head promises a petabyte."""
    with open(folder / "losses.npy", "wb") as file:
        head = {"descr": "<f4", "fortran_order": False, "shape": (10**6, 10**5, 10**4)}
        np.lib.format.write_array_header_1_0(file, head)


def zipped(folder: Path) -> None:
    np.savez(folder / "masks.npz", masks=np.ones((2, 2)))
    (folder / "masks.npz").rename(folder / "masks.npy")


def pipe(folder: Path) -> None:
    (folder / "masks.npy").unlink()
    os.mkfifo(folder / "masks.npy")


def a_folder(folder: Path) -> None:
    (folder / "losses.npy").unlink()
    (folder / "losses.npy").mkdir()


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "NaN": (array("losses.npy", not_finite(np.nan)), "losses.npy is not finite for subset 2, seed 1 and query 3"),
    "infinity": (array("losses.npy", not_finite(np.inf)), "losses.npy is not finite for subset 2, seed 1 and query 3"),
    "no seeds": (array("losses.npy", np.ones((SUBSETS, 0, 4), np.float32)), "but must be [6, seeds, 4]"),
    "whole numbers": (
        array("losses.npy", np.ones((SUBSETS, SEEDS, 4), np.int64)),
        "holds int64, but must hold",
    ),
    "complex": (array("losses.npy", np.ones((SUBSETS, SEEDS, 4), complex)), "holds complex128, but must hold float32"),
    "words": (array("losses.npy", np.full((SUBSETS, SEEDS, 4), "x")), "holds <U1, but must hold float32"),
    "a number": (array("losses.npy", np.float32(1)), "losses.npy is [], but must be [6, seeds, 4]"),
    "no subsets": (array("masks.npy", np.ones((0, 12), bool)), "masks.npy"),
    "masks of floats": (array("masks.npy", np.ones((SUBSETS, 12))), "masks.npy is float64 [6, 12], but must be bool"),
    "a mask alone": (array("masks.npy", np.ones(12, bool)), "masks.npy is bool [12], but must be bool [subsets, 12]"),
    "promises": (promised, "cannot read bench/losses.npy"),
    "zip": (zipped, "cannot read bench/masks.npy"),
    "pipe": (pipe, "cannot read bench/masks.npy: it is not a file"),
    "folder": (a_folder, "cannot read bench/losses.npy: it is not a file"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_misshapen_benchmark_is_one_line(what: str, folder: Path, tmp_path: Path) -> None:
    damage, says = DAMAGES[what]
    damage(folder)
    outcome = dtrak(*ASKED, cwd=tmp_path)
    assert (outcome.code, outcome.out) == (1, "")
    assert says in outcome.err.splitlines()[-1]
    assert outcome.err.splitlines()[-1].startswith("dtrak: ")
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("text", ["soon", "", "nan", "1.5\n2.5"])
def test_times_that_cannot_be_read_were_not_kept(text: str, folder: Path) -> None:
    (folder / "jobs").mkdir()
    (folder / "jobs" / "subset-000-seed-0.seconds").write_text(text)
    assert Benchmark.open(folder).training_seconds is None
    if text != "nan":
        (folder / "jobs" / "subset-001-seed-0.seconds").write_text("2.5")
        assert Benchmark.open(folder).training_seconds == 2.5


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[1, 2]", "it: Input should be a valid dictionary"),
        ("5", r"it: Input should be a valid dictionary or instance of BenchmarkRecord \(it says 5\)"),
        ("{", "does not say how .* was made: Expecting property name"),
        ("[" * 100_000, "does not say how .* was made: maximum recursion depth"),
        ('{"subsets": "many"}', r"subsets: Input should be a valid integer.* \(it says 'many'\)"),
        ('{"subsets": 0}', r"subsets: Input should be greater than 0 \(it says 0\)"),
        ('{"threads": [2]}', r"threads: Input should be a valid integer \(it says \[2\]\)"),
        ('{"queries": [1]}', r"queries: Input should be a valid dictionary \(it says \[1\]\)"),
        ('{"fraction": "half"}', "its fraction cannot be 'half': Input should be a valid number"),
        ('{"noises": 1000000000}', "noises 1000000000: it must be at most 1,000,000"),
        ('{"timesteps": {}}', "its timesteps.* cannot be {}"),
    ],
)
def test_a_misshapen_benchmark_json_is_one_line(content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "benchmark.json").write_text(content)
    with pytest.raises(UsageError, match=says):
        RetrainingSettings.resumed(tmp_path, Evaluation(), {})


def test_evaluate_names_a_misshapen_benchmark_json(own_run: Path) -> None:
    (own_run / "benchmark").mkdir()
    (own_run / "benchmark" / "benchmark.json").write_text('{"subsets": "many"}')
    outcome = dtrak("evaluate", "lds", own_run, "--engine", "process", cwd=own_run)
    assert (outcome.code, outcome.out) == (2, "")
    assert "benchmark.json does not say how" in outcome.error
    (own_run / "benchmark" / "benchmark.json").unlink()
    os.mkfifo(own_run / "benchmark" / "benchmark.json")
    assert "it is not a file" in dtrak("evaluate", "lds", own_run, cwd=own_run).error


# features


def a_store(own_run: Path) -> Path:
    return next(own_run.glob("features/train-*"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rows": "many"}, "rows: Input should be a valid integer"),
        ({"rows": -5}, r"rows: Input should be greater than 0 \(it says -5\)"),
        ({"dtype": "float8"}, r"dtype: Input should be 'float32', 'float16' or 'bfloat16' \(it says 'float8'\)"),
        ({"shape": 7}, r"shape: Input should be a valid tuple \(it says 7\)"),
    ],
)
def test_a_misshapen_part_is_one_line(changes: dict[str, Any], says: str, own_run: Path) -> None:
    path = a_store(own_run) / "part.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(DtrakError, match=says):
        FeatureStore.open(path.parent)


@pytest.mark.parametrize("text", ['{"gradients": "x"}', "[]", "[" * 100_000, "null", '{"colour": 1}'])
def test_a_cost_that_cannot_be_read_was_not_kept(text: str, own_run: Path) -> None:
    store = a_store(own_run)
    (store / "cost.json").write_text(text)
    assert FeatureStore.open(store).cost.gradients == 0


def test_a_shard_of_another_dtype_is_made_again(own_run: Path) -> None:
    store = a_store(own_run)
    before = FeatureStore.open(store).numpy()
    shard = store / "shard-00000.safetensors"
    as_doubles = {"features": load_file(shard)["features"].double()}
    save_file(as_doubles, shard)
    assert FeatureStore.open(store).missing() == [0]
    (own_run / "scores.npz").unlink()
    assert dtrak("attribute", own_run, cwd=own_run).code == 0
    assert np.array_equal(FeatureStore.open(store).numpy(), before)
