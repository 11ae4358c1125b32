"""What a retraining job keeps is known by its objective's name: a new or moved objective retrains nothing."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from dtrak.attribution.benchmark_folder import Benchmark
from dtrak.engines import make_engine
from dtrak.errors import UsageError
from dtrak.evaluation.benchmark_making import RetrainingSettings, make_benchmark
from dtrak.files import as_npy
from dtrak.gradients.objectives import OBJECTIVES
from dtrak.runs.run import Run

ORDER = ("simple", "elbo", "square", "avg", "l1", "l2", "linf")
SETTINGS = {"subsets": 2, "seeds": 1, "timesteps": 2, "noises": 1}


def make(run_folder: Path, folder: Path, **changes: int) -> None:
    run = Run.open(run_folder)
    queries = {"validation": run.query_images("digits:validation").select(range(3))}
    make_benchmark(run, folder, RetrainingSettings(**{**SETTINGS, **changes}), make_engine("process"), queries)  # type: ignore[arg-type]


def jobs(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (folder / "jobs").glob("*.npz")}


def outputs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "losses.npy", *sorted(folder.glob("outputs/*.npy")))}


@pytest.fixture(scope="module")
def made(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "benchmark"
    make(finished_run, folder)
    return folder


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "own"))


def test_a_job_keeps_an_array_for_each_objective_under_its_name(own: Path) -> None:
    for path in (own / "jobs").glob("*.npz"):
        with np.load(path) as archive:
            assert set(archive) == {f"outputs/validation/{name}" for name in ORDER}
            assert {archive[key].shape for key in archive} == {(3,)}


def largest(predicted: Tensor, noise: Tensor, weights: Tensor) -> Tensor:
    return predicted.flatten(1).amax(1)


def add_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OBJECTIVES, "_known", {**OBJECTIVES, "largest": largest})


def turn_around(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OBJECTIVES, "_known", dict(reversed([*OBJECTIVES.items()])))
    assert tuple(OBJECTIVES) == ORDER[::-1]


@pytest.mark.parametrize("change", [add_one, turn_around])
def test_another_registry_retrains_nothing_and_labels_the_same(
    change: Callable[[pytest.MonkeyPatch], None],
    own: Path,
    finished_run: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept, assembled = jobs(own), outputs(own)
    with monkeypatch.context() as patch:
        change(patch)
        make(finished_run, own)
        assert jobs(own) == kept
        assert outputs(own) == assembled
        make(finished_run, own, subsets=3)
        assert kept.items() <= jobs(own).items()
    for name in ORDER:
        first = Benchmark.open(own).losses("validation", name)[:2]
        path = "losses.npy" if name == "simple" else f"validation-{name}.npy"
        assert as_npy(np.ascontiguousarray(first)) == assembled[path], "the same labels"
    with pytest.raises(UsageError, match=r"has no outputs/validation-largest\.npy"):
        Benchmark.open(own).losses("validation", "largest")


def test_an_objective_that_all_jobs_have_is_put_together(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_one(monkeypatch)
    make(finished_run, tmp_path / "new", subsets=1)
    assert Benchmark.open(tmp_path / "new").losses("validation", "largest").shape == (1, 1, 3)
