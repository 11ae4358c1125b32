"""Retraining: outputs against a plain loop, models against `dtrak train`, and benchmark folders that survive kills."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from commands import processes
from dtrak.attribution.benchmark_folder import Benchmark
from dtrak.engines import make_engine
from dtrak.errors import DtrakError, UsageError
from dtrak.evaluation import outputs as outputs_module
from dtrak.evaluation.benchmark_making import RetrainingSettings, make_benchmark
from dtrak.evaluation.outputs import model_outputs
from dtrak.evaluation.training_jobs import (
    Retraining,
    TrainingJob,
    model_with_weights,
    random_subsets,
    retrain,
    run_jobs,
    threads_per_job,
)
from dtrak.features.model_inputs import ModelInputs
from dtrak.files import alone_in
from dtrak.gradients.objectives import OBJECTIVES
from dtrak.images.images import Images, load_images
from dtrak.models import load_model, new_model
from dtrak.models.sampling import sample
from dtrak.noise import gaussian
from dtrak.runs.recipes import load_recipe
from dtrak.runs.run import Run
from processes import children

SMALL: dict[str, Any] = {"subsets": 2, "seeds": 2, "timesteps": 4, "noises": 2}


def queries_of(run: Run) -> dict[str, Images]:
    return {
        "validation": run.query_images("digits:validation").select(range(5, 8)),
        "generated": run.query_images(str(run.folder / "generated")),
    }


def make(run_folder: Path, folder: Path, engine: str = "process", **changes: Any) -> None:
    """A small benchmark folder."""
    run = Run.open(run_folder)
    make_benchmark(run, folder, RetrainingSettings(**{**SMALL, **changes}), make_engine(engine), queries_of(run))


def content(folder: Path, below: str = "**/*") -> dict[str, bytes]:
    """Every file, but for locks and the time that jobs took."""
    files = [path for path in folder.glob(below) if path.is_file() and path.name != ".lock"]
    files = [path for path in files if path.suffix != ".seconds"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def written_at(folder: Path) -> dict[str, int]:
    return {path.stem: path.stat().st_mtime_ns for path in sorted((folder / "jobs").glob("*.npz"))}


@pytest.fixture(scope="module")
def benchmark(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two subsets with two seeds each, models kept. Not to be changed."""
    folder = tmp_path_factory.mktemp("benchmark") / "made"
    make(finished_run, folder, keep_models=True)
    return folder


# outputs


@pytest.mark.parametrize("pass_bytes", [1, outputs_module.PASS_BYTES])
@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction"])
def test_outputs_are_the_means_of_a_plain_loop(
    prediction_type: str, pass_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs_module, "PASS_BYTES", pass_bytes)
    model, images = tiny.unet(prediction_type), load_images("digits:validation").select(range(4))
    model.network.eval()
    timesteps, noises = (0, 10, 999), 2
    expected = {name: np.zeros(4) for name in OBJECTIVES}
    for column, clean in enumerate(images.tensor(range(4))):
        for timestep in timesteps:
            for draw in range(noises):
                noise = gaussian(model.shape, 5, "output", timestep, draw)[None]
                t = torch.tensor([timestep])
                with torch.no_grad():
                    predicted = model.predict_target(model.process.add_noise(clean[None], noise, t), t)
                for name, objective in OBJECTIVES.items():
                    value = objective(predicted, noise, model.process.elbo_weights(t)).item()
                    expected[name][column] += value / (len(timesteps) * noises)
    found = model_outputs(model, images, timesteps, noises, seed=5)
    assert found.keys() == OBJECTIVES.keys()
    for name, values in found.items():
        assert values.dtype == np.float64
        np.testing.assert_allclose(values, expected[name], rtol=2e-5, atol=1e-6)


def test_outputs_that_are_not_finite_are_named() -> None:
    model = tiny.unet()
    with torch.no_grad():
        next(model.network.parameters()).fill_(torch.nan)
    with pytest.raises(DtrakError, match="the model's output is not finite for image 2 at timestep 7"):
        model_outputs(model, load_images("digits:validation").select([2, 3]), (7, 8))


# jobs


def context_of(run: Run, masks: Sequence[Sequence[bool]] | np.ndarray[Any, Any], **wanted: Any) -> Retraining:
    return Retraining(
        run.recipe, ModelInputs(run.train_images.in_memory()), np.asarray(masks), keep_weights=True, **wanted
    )


def test_all_images_and_the_same_seed_give_the_runs_own_model(finished_run: Path) -> None:
    run = Run.open(finished_run)
    context = context_of(run, np.ones((1, 1000), bool))
    (result,) = (arrays for _, arrays in run_jobs(context, [TrainingJob(0)], make_engine("process")))
    assert model_with_weights(context, result).fingerprint == run.model().fingerprint


def test_a_job_draws_from_its_own_seeds(finished_run: Path) -> None:
    run = Run.open(finished_run)
    context = context_of(run, random_subsets(2, 1000))
    result = retrain(context, TrainingJob(1, seed=3, draw=(8, 2)))
    steps = run.recipe.generation.steps
    drawn = sample(model_with_weights(context, result), (8, 2), steps).pictures
    assert result["pictures"].tobytes() == drawn.numpy().tobytes()
    assert set(result) == {"seconds", "pictures", *(f"weights/{name}" for name in run.model().network.state_dict())}


def test_images_in_memory_are_the_same_and_need_no_file(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(3, 12, 12, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=pixels, ids=np.array(["a", "b", "c"]))
    images = load_images(str(tmp_path / "images.npz"), crop=10, size=8)
    copy = images.in_memory()
    assert np.array_equal(copy.pixels([2, 0]), images.pixels([2, 0]))
    assert copy.ids.tolist() == ["a", "b", "c"]
    assert copy.shape == (3, 8, 8)


def test_large_models_get_more_threads_and_leave_room_for_fewer_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    from dtrak.evaluation import training_jobs

    recipe = load_recipe("digits")
    monkeypatch.setattr(training_jobs, "cores", lambda: 16)
    found = []
    for gigabytes in (64, 4, 1):
        monkeypatch.setattr(training_jobs, "total_memory", lambda device, gigabytes=gigabytes: gigabytes << 30)
        found.append(threads_per_job(recipe, new_model(recipe.model, (1, 8, 8), "tiny"), {}))
    assert found == [1, 5, 16]


# the folder


def test_the_folder_reads_back(benchmark: Path, finished_run: Path) -> None:
    run, opened = Run.open(finished_run), Benchmark.open(benchmark)
    assert load_model(str(benchmark / "model")).fingerprint == run.model().fingerprint
    for images, original in (
        (opened.train, run.train_images),
        *((opened.queries(name), images) for name, images in queries_of(run).items()),
    ):
        assert np.array_equal(images.pixels(range(len(images))), original.pixels(range(len(original))))
        assert images.ids.tolist() == original.ids.tolist()
        assert images.fingerprint == original.in_memory().fingerprint
    assert np.array_equal(opened.train.columns["label"], run.train_images.columns["label"])
    assert opened.queries("generated").columns["seed"].tolist() == [0, 1, 2, 3]
    assert opened.masks.sum(1).tolist() == [500, 500]
    assert np.array_equal(opened.masks, random_subsets(2, 1000, 0.5, run.train_images.columns["label"]))
    made_by = json.loads((benchmark / "benchmark.json").read_text())
    assert made_by["recipe"]["training"]["epochs"] == 2
    assert (made_by["subsets"], made_by["seeds"], made_by["queries"]) == (2, 2, {"validation": 3, "generated": 4})


def test_the_arrays_are_the_outputs_of_the_models_that_were_kept(benchmark: Path) -> None:
    opened = Benchmark.open(benchmark)
    assert len(opened.retrained) == 2
    for kind in ("validation", "generated"):
        for subset in range(2):
            for seed in range(2):
                model = load_model(str(benchmark / "retrained" / f"subset-{subset:03d}-seed-{seed}"))
                values = model_outputs(model, opened.queries(kind), (0, 250, 500, 750), noises=2)
                for objective, expected in values.items():
                    found = opened.losses(kind, objective)
                    assert found.dtype == np.float32
                    np.testing.assert_allclose(found[subset, seed], expected, rtol=1e-5, atol=1e-7)


def test_a_kept_model_is_what_train_makes_of_its_subset_and_seed(benchmark: Path, finished_run: Path) -> None:
    from dtrak.evaluation.training_jobs import with_training_seed
    from dtrak.runs.training import train_in_memory

    run = Run.open(finished_run)
    chosen = run.train_images.select(np.flatnonzero(np.load(benchmark / "masks.npy")[1]))
    model = train_in_memory(with_training_seed(run.recipe, 1), chosen, "cpu")
    assert load_model(str(benchmark / "retrained" / "subset-001-seed-1")).fingerprint == model.fingerprint


def test_killed_again_and_again_only_what_is_missing_is_done_and_every_byte_is_the_same(
    benchmark: Path, finished_run: Path, tmp_path: Path
) -> None:
    folder, kept = tmp_path / "killed", dict[str, int]()
    for finished in (1, 3):
        process = processes.Process(target=make, args=(finished_run, folder), kwargs={"keep_models": True})
        process.start()
        while process.is_alive() and len(list(folder.glob("jobs/*.npz"))) < finished:
            time.sleep(0.002)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert not (folder / "losses.npy").exists()
        now = written_at(folder)
        assert len(now) >= finished
        assert kept.items() <= now.items()
        kept = now
    make(finished_run, folder, keep_models=True)
    assert kept.items() <= written_at(folder).items()
    assert content(folder) == content(benchmark)


@pytest.mark.slow
def test_a_pool_gives_the_same_bytes_even_when_a_worker_is_killed(
    benchmark: Path, finished_run: Path, tmp_path: Path
) -> None:
    folder, killed = tmp_path / "pool", list[int]()

    def kill_one() -> None:
        while not list(folder.glob("jobs/*.npz")):
            time.sleep(0.01)
        workers = [pid for pid in children(os.getpid()) if b"dtrak.engines.pool" in commandline(pid)]
        os.kill(workers[0], signal.SIGKILL)
        killed.append(workers[0])

    killer = threading.Thread(target=kill_one)
    killer.start()
    make(finished_run, folder, engine="pool", keep_models=True)
    killer.join()
    assert len(killed) == 1
    assert content(folder) == content(benchmark)


def commandline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.fixture(scope="module")
def one_seed(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one-seed") / "made"
    make(finished_run, folder, seeds=1)
    return folder


@pytest.fixture
def own_benchmark(one_seed: Path, tmp_path: Path) -> Path:
    """Two subsets with one seed each, for a test to change."""
    return Path(shutil.copytree(one_seed, tmp_path / "own"))


def flip_a_bit(path: Path) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(b"simple.npy") + 60] ^= 1  # in the numbers: some bits of a zip file's heads mean nothing
    path.write_bytes(damaged)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip_a_bit, cut, empty, Path.unlink])
def test_a_damaged_job_is_done_again_and_no_other(
    damage: Callable[[Path], None], own_benchmark: Path, finished_run: Path
) -> None:
    whole, before = content(own_benchmark), written_at(own_benchmark)
    damaged, intact = sorted((own_benchmark / "jobs").glob("*.npz"))
    damage(damaged)
    make(finished_run, own_benchmark, seeds=1)
    assert content(own_benchmark) == whole
    after = written_at(own_benchmark)
    assert after[intact.stem] == before[intact.stem]
    assert after[damaged.stem] > before[damaged.stem]


def test_more_subsets_and_seeds_add_to_what_is_there(own_benchmark: Path, finished_run: Path) -> None:
    before, losses, masks = (
        written_at(own_benchmark),
        np.load(own_benchmark / "losses.npy"),
        np.load(own_benchmark / "masks.npy"),
    )
    make(finished_run, own_benchmark, subsets=3, seeds=2)
    assert before.items() <= written_at(own_benchmark).items()
    assert len(written_at(own_benchmark)) == 6
    assert np.load(own_benchmark / "losses.npy").shape == (3, 2, 3)
    assert np.array_equal(np.load(own_benchmark / "losses.npy")[:2, :1], losses)
    assert np.array_equal(np.load(own_benchmark / "masks.npy")[:2], masks)
    assert json.loads((own_benchmark / "benchmark.json").read_text())["subsets"] == 3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"fraction": 0.4},
            "own was made with fraction 0.5, not 0.4: give the same as before, read it as --benchmark ",
        ),
        ({"timesteps": 5}, "own was made with timesteps 4, not 5"),
        ({"noises": 1}, "own was made with noises 2, not 1"),
        ({"seed": 1}, "own was made with seed 0, not 1"),
        ({"keep_models": True}, "own was made with keep_models False, not True"),
    ],
)
def test_other_settings_are_refused(
    changes: dict[str, Any], says: str, own_benchmark: Path, finished_run: Path
) -> None:
    before = content(own_benchmark)
    with pytest.raises(UsageError, match=says):
        make(finished_run, own_benchmark, **changes)
    assert content(own_benchmark) == before


def test_other_recipes_and_queries_are_refused(own_benchmark: Path, own_run: Path) -> None:
    run = Run.open(own_run)
    longer = run.recipe.model_copy(update={"training": run.recipe.training.model_copy(update={"epochs": 3})})
    few = {
        "validation": run.query_images("digits:validation").select([1, 2, 4]),
        "generated": queries_of(run)["generated"],
    }
    for other, queries, says in (
        (Run(own_run, longer), queries_of(run), "made with recipe.training.epochs 2, not 3"),
        (run, few, "made with fingerprints.validation "),
        (run, {"validation": queries_of(run)["validation"]}, "made with queries.generated 4, not None"),
    ):
        with pytest.raises(UsageError, match=says):
            make_benchmark(other, own_benchmark, RetrainingSettings(**SMALL), make_engine("process"), queries)


def test_a_benchmark_goes_on_though_recipes_have_got_new_fields_since(own_benchmark: Path, finished_run: Path) -> None:
    path = own_benchmark / "benchmark.json"
    about = json.loads(path.read_text())
    del about["recipe"]["training"]["autocast"], about["recipe"]["model"]["kind"]
    path.write_text(json.dumps(about))
    before = written_at(own_benchmark)
    make(finished_run, own_benchmark, subsets=3)
    assert before.items() <= written_at(own_benchmark).items()


def test_two_commands_do_not_make_one_folder(own_benchmark: Path, finished_run: Path) -> None:
    with alone_in(own_benchmark), pytest.raises(DtrakError, match="another dtrak is at work"):
        make(finished_run, own_benchmark)


def test_what_cannot_be_is_refused_before_the_work(
    finished_run: Path, tmp_path: Path, recipe: Callable[..., Path]
) -> None:
    run, engine = Run.open(finished_run), make_engine("process")
    for name in ("subsets", "seeds", "noises"):
        with pytest.raises(UsageError, match=f"{name} 0: it must be at least 1"):
            RetrainingSettings(**{name: 0})
    folder = tmp_path / "none"
    with pytest.raises(UsageError, match="unknown queries 'drawn': choose from validation, generated"):
        make_benchmark(run, folder, RetrainingSettings(), engine, {"drawn": run.train_images})
    with pytest.raises(UsageError, match="timesteps '2000': give a number from 1 to 1000"):
        make_benchmark(run, folder, RetrainingSettings(timesteps=2000), engine, queries_of(run))
    with pytest.raises(UsageError, match="has no model yet"):
        make_benchmark(
            Run.create(tmp_path / "new", load_recipe(str(recipe()))), folder, RetrainingSettings(), engine, {}
        )
    assert not folder.exists()
