"""`dtrak evaluate lds` through the command line, and what it computes against scipy one query at a time."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

import dtrak
from commands import dtrak as run_dtrak
from conftest import tiny_recipe
from dtrak.attribution.benchmark_folder import Benchmark
from dtrak.attribution.scores import load_scores
from dtrak.attribution.settings import Settings
from dtrak.errors import UsageError
from dtrak.evaluation.comparison import compare
from tiny_clip import save_clip

IMAGES = 200
QUICK = ("--timesteps", "2", "--projection-dim", "64")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run whose benchmark the command made, of 8 subsets, models kept; and the table of all methods."""
    folder = tmp_path_factory.mktemp("evaluated")
    recipe = tiny_recipe(folder / "tiny.yaml", data={"select": {"count": IMAGES}}, training={"batch_size": 50})
    outcome = run_dtrak("run", recipe, "--out", "run", cwd=folder)
    assert outcome.code == 0, outcome.err
    save_clip(folder / "clip")
    outcome = run_dtrak(
        "evaluate", "lds", "run", "--method", "all", "--encoder", "clip", "--ensemble-size", "2",
        "--subsets", "8", "--seeds", "2", "--output-timesteps", "5", "--output-noises", "1", "--validation-count", "6",
        "--keep-models", "--engine", "process", "--table", "table.csv", "--damping", "chosen", *QUICK, cwd=folder,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    (folder / "out").write_text(outcome.out)
    (folder / "err").write_text(outcome.err)
    return folder


def truth(folder: Path, queries: str = "validation") -> tuple[Any, Any]:
    benchmark = Benchmark.open(folder / "run" / "benchmark")
    return benchmark.masks, benchmark.losses(queries).astype(np.float64).mean(1)


def lds_by_scipy(values: Any, masks: Any, losses: Any) -> Any:
    predicted = -(masks.astype(np.float64) @ values.T.astype(np.float64))
    return np.array([100 * spearmanr(p, y).statistic for p, y in zip(predicted.T, losses.T, strict=True)])


def test_a_run_becomes_a_benchmark_and_a_table(evaluated: Path) -> None:
    numbers = json.loads((evaluated / "run" / "lds.json").read_text())
    assert numbers["queries"] == 6
    assert numbers["subsets"] == 4
    assert -100 <= numbers["ceiling"] <= 100
    left_out = {"journey-trak", "journey-trak-ensemble"}  # validation images were drawn from no seed
    assert numbers["methods"].keys() == dtrak.methods.METHODS.keys() - left_out
    for name, method in numbers["methods"].items():
        assert method["lds"] == pytest.approx(np.mean(method["per_query"])), name
        assert len(method["per_query"]) == 6
        assert method["bootstrap_std"] >= 0
        assert (method["damping"] is not None) == (dtrak.methods.METHODS[name].kernel is not None)
        assert method["seconds"] >= method["gradient_seconds"] + method["projection_seconds"]
    assert numbers["methods"]["trak"]["gradient_seconds"] > 0
    assert numbers["methods"]["datamodel"]["training_seconds"] > numbers["methods"]["trak-ensemble"]["training_seconds"]
    assert numbers["methods"]["d-trak"]["training_seconds"] == 0
    for name in left_out:
        assert f"Left out: {name}: " in (evaluated / "err").read_text()
    rows = list(csv.DictReader((evaluated / "table.csv").open()))
    assert [row["method"] for row in rows] == list(numbers["methods"])
    assert float(rows[0]["LDS %"]) == numbers["methods"]["random"]["lds"]
    assert "chosen on the other 4 subsets" in " ".join((evaluated / "out").read_text().split())


@pytest.mark.parametrize("queries", ["validation", "generated"])
def test_lds_is_that_of_the_scores_that_attribute_gives(evaluated: Path, queries: str) -> None:
    folder = evaluated / "run" / "benchmark"
    masks, losses = truth(evaluated, queries)
    options: dict[str, Any] = {"timesteps": 2, "projection_dim": 64}
    damping, images = "absolute:0.01", (folder / "train.npz", folder / f"{queries}.npz")
    cache = folder.parent / queries
    found = compare(Benchmark.open(folder), ["d-trak"], cache, Settings(**options), queries=queries, damping=damping)
    scores = dtrak.attribute(folder / "model", *images, "d-trak", damping=damping, **options)
    np.testing.assert_allclose(found.results[0].lds.per_query, lds_by_scipy(scores.values, masks, losses), atol=1e-6)
    assert found.subsets == 8  # nothing was fitted


def test_the_best_damping_is_chosen_on_one_half_and_reported_on_the_other(evaluated: Path, tmp_path: Path) -> None:
    folder, (masks, losses) = evaluated / "run" / "benchmark", truth(evaluated)
    options: dict[str, Any] = {"timesteps": 2, "projection_dim": 64}
    tried = {}
    for power in range(-10, 7):
        scores = dtrak.attribute(
            folder / "model", folder / "train.npz", folder / "validation.npz", "d-trak",
            damping=10.0 ** (power / 2), cache=tmp_path, **options,
        )  # fmt: skip
        halves = [lds_by_scipy(scores.values, masks[half], losses[half]).mean() for half in (slice(4), slice(4, 8))]
        tried[10.0 ** (power / 2)] = halves
    chosen, best = (
        compare(Benchmark.open(folder), ["d-trak"], tmp_path, Settings(**options), damping=damping).results[0]
        for damping in ("chosen", "best")
    )
    expected = max(tried, key=lambda damping: tried[damping][0])
    assert chosen.damping == pytest.approx(expected)
    assert chosen.lds.mean == pytest.approx(tried[expected][1], abs=1e-4)
    assert best.lds.mean >= chosen.lds.mean - 100  # over all eight subsets, so only its range is known here
    both = compare(Benchmark.open(folder), ["d-trak", "datamodel"], tmp_path, Settings(**options), damping="best")
    assert both.results[0].lds.mean == pytest.approx(max(second for _, second in tried.values()), abs=1e-4)
    assert "best in hindsight" in both.note


def test_methods_that_learn_from_retrained_models_see_only_the_first_half(evaluated: Path, tmp_path: Path) -> None:
    folder, (masks, losses) = evaluated / "run" / "benchmark", truth(evaluated)
    found = compare(Benchmark.open(folder), ["empirical-influence"], tmp_path, Settings())
    inside, first = masks[:4].astype(float), losses[:4]
    with np.errstate(invalid="ignore"):
        scores = (first.T @ (1 - inside)) / (1 - inside).sum(0) - (first.T @ inside) / inside.sum(0)
    expected = lds_by_scipy(np.nan_to_num(scores), masks[4:], losses[4:])
    np.testing.assert_allclose(found.results[0].lds.per_query, expected, atol=1e-4)
    assert found.subsets == 4


def test_a_run_makes_models_to_learn_from_and_the_lds_is_of_all_subsets(evaluated: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(evaluated / "run", tmp_path / "run"))
    output = ("--output-timesteps", "5", "--output-noises", "1", "--validation-count", "6")
    asked = ("--subsets", "10", *output, "--keep-models", "--engine", "process")
    outcome = run_dtrak("evaluate", "retrain", own, *asked, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    folder, (masks, losses) = own / "benchmark", truth(evaluated)
    others = Benchmark.open(own / "retrained")
    assert others.masks.shape == (10, IMAGES)
    assert others.losses("validation").shape == (10, 1, 6)
    assert len(others.retrained) == 10
    assert not {one.tobytes() for one in others.masks} & {one.tobytes() for one in masks}

    methods = "empirical-influence,d-trak-ensemble"
    asked = ("--method", methods, "--damping", "best", "--grid", "paper", "--ensemble-size", "2", *QUICK)
    outcome = run_dtrak("evaluate", "lds", own, "--table", "table.csv", *asked, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    numbers = json.loads((own / "lds.json").read_text())
    assert numbers["subsets"] == 8
    inside, first = others.masks.astype(float), others.losses("validation").astype(float).mean(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        scores = (first.T @ (1 - inside)) / (1 - inside).sum(0) - (first.T @ inside) / inside.sum(0)
    expected = lds_by_scipy(np.nan_to_num(scores), masks, losses)
    found = numbers["methods"]["empirical-influence"]
    np.testing.assert_allclose(found["per_query"], expected, atol=1e-4)

    few = compare(Benchmark.open(folder), [methods.split(",")[0]], tmp_path / "few",
                  Settings(retrained=own / "retrained", retrained_count=5), damping="0.1")  # fmt: skip
    assert few.subsets == 8
    assert not np.allclose(few.results[0].lds.per_query, expected)

    # The paper's grid and its bootstrap are labelled.
    said = " ".join(outcome.out.split())
    assert "of the paper's 27 λ, each ÷ 64: its random matrix is not divided by √k, ours is" in said
    assert "the paper reports its mean and ±" in said
    rows = {row["method"]: row for row in csv.DictReader((tmp_path / "table.csv").open())}
    assert float(rows["empirical-influence"]["bootstrap"]) == found["bootstrap_mean"]
    tried = [digit * 10.0**power for power in range(-2, 7) for digit in (1, 2, 5)]
    assert min(abs(float(rows["d-trak-ensemble"]["paper's λ"]) / one - 1) for one in tried) < 1e-6


def test_models_to_learn_from_are_other_ones_than_those_to_predict(evaluated: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(evaluated / "run" / "benchmark", tmp_path / "copied"))
    with pytest.raises(UsageError, match=r"its subset 0 is one of .*, so methods would learn what they"):
        compare(Benchmark.open(evaluated / "run" / "benchmark"), ["datamodel"], tmp_path, Settings(retrained=copied))


def test_an_earlier_checkpoint_is_attributed_and_evaluated(evaluated: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(evaluated / "run", tmp_path / "run"))
    first = sorted(path.name for path in (own / "checkpoints").iterdir())[0]
    before = (own / "scores.npz").read_bytes()
    images = (own / "benchmark" / "train.npz", own / "benchmark" / "validation.npz")
    options: dict[str, Any] = {"timesteps": 2, "projection_dim": 64, "parameters": "conv_out"}
    expected = dtrak.attribute(own / "checkpoints" / first, *images, "d-trak", damping=0.1, **options)
    for name in (first, str(int(first.removeprefix("step-"))), str(own / "checkpoints" / first)):
        asked = ("--checkpoint", name, "--method", "d-trak", "--damping", "0.1", *QUICK)
        outcome = run_dtrak("attribute", own, "--queries", images[1], "--out", "s.npz", *asked, cwd=tmp_path)
        assert outcome.code == 0, outcome.err
        np.testing.assert_allclose(load_scores(tmp_path / "s.npz")["d-trak"].values, expected.values, 1e-3, 1e-6)
        outcome = run_dtrak("evaluate", "lds", own, "--out", "lds.json", *asked, cwd=tmp_path)
        assert outcome.code == 0, outcome.err
        numbers = json.loads((tmp_path / "lds.json").read_text())
        per_query = lds_by_scipy(expected.values, *truth(evaluated))
        np.testing.assert_allclose(numbers["methods"]["d-trak"]["per_query"], per_query, atol=1e-2)
        assert numbers["settings"]["checkpoint"] == first
    assert (own / "scores.npz").read_bytes() == before
    outcome = run_dtrak("attribute", own, "--checkpoint", first, cwd=tmp_path)
    assert outcome.code == 2
    assert "give another file as --out" in outcome.error


def test_asked_again_nothing_is_retrained_and_another_output_can_be_predicted(evaluated: Path) -> None:
    jobs = {path: path.stat().st_mtime_ns for path in (evaluated / "run" / "benchmark" / "jobs").iterdir()}
    outcome = run_dtrak(
        "evaluate", "lds", "run", "--method", "trak,d-trak", "--queries", "generated", "--output-function", "square",
        "--subsets", "8", "--seeds", "2", "--output-timesteps", "5", "--output-noises", "1", "--validation-count", "6",
        "--keep-models", "--damping", "spectrum", "--out", "square.json", *QUICK, cwd=evaluated,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert "models to train" not in outcome.err
    assert jobs == {path: path.stat().st_mtime_ns for path in (evaluated / "run" / "benchmark" / "jobs").iterdir()}
    numbers = json.loads((evaluated / "square.json").read_text())
    assert numbers["methods"].keys() == {"trak", "d-trak"}
    assert (numbers["queries"], numbers["subsets"]) == (4, 8)


def test_journeys_and_ensembles_answer_for_generated_pictures(evaluated: Path) -> None:
    outcome = run_dtrak(
        "evaluate", "lds", "--benchmark", "run/benchmark", "--queries", "generated", "--ensemble-size", "2",
        "--method", "journey-trak-ensemble,journey-trak,trak-ensemble", "--damping", "0.1", *QUICK, cwd=evaluated,
    )  # fmt: skip
    assert outcome.code == 2
    assert "draws from seed" in outcome.err  # the benchmark alone does not say that the recipe draws in 5 steps
    outcome = run_dtrak(
        "attribute", "run", "--method", "journey-trak-ensemble,journey-trak,trak-ensemble", "--ensemble-size", "2",
        "--out", "journeys.csv", *QUICK, cwd=evaluated,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    rows = list(csv.DictReader((evaluated / "journeys.csv").open()))
    assert len(rows) == 3 * 4 * IMAGES
    assert {row["method"] for row in rows} == {"journey-trak-ensemble", "journey-trak", "trak-ensemble"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give a run to retrain or a --benchmark to read"),
        (("run", "--benchmark", "run/benchmark"), "give a run to retrain or a --benchmark to read"),
        (("--benchmark", "run"), "run is not a benchmark: it has no train.npz"),
        (("--benchmark", "run/benchmark", "--method", "dtrack"), "unknown method 'dtrack'"),
        (("--benchmark", "run/benchmark", "--queries", "mine"), "unknown queries 'mine': choose from validation"),
        (("--benchmark", "run/benchmark", "--damping", "most"), "damping 'most'"),
        (("--benchmark", "run/benchmark", "--grid", "fine"), "unknown grid 'fine': choose from paper, log"),
        (("--benchmark", "run/benchmark", "--output-function", "cube"), "unknown output function 'cube'"),
        (("--benchmark", "run/benchmark", "--table", "table.pdf"), "table.pdf"),
        (("--benchmark", "run/benchmark", "--engine", "cloud"), "unknown engine 'cloud'"),
        (("nowhere",), "nowhere is not a run"),
        (("run", "--subsets", "3", "--damping", "chosen"), "subsets 3: too few to choose the damping"),
        (("run", "--projection", "dens"), "unknown projection 'dens'"),
        (("run", "--method", "trak", "--objective", "avg"), "trak does not take the objective 'avg'"),
        (("run", "--method", "clip-dot", "--encoder", "nowhere"), "no encoder 'nowhere'"),
        (("run", "--retrained", "nowhere"), "nowhere is not a benchmark"),
        (("run", "--checkpoint", "step-9"), "checkpoint step-9: no model of this name; run/checkpoints holds step-"),
        (("--benchmark", "run/benchmark", "--checkpoint", "run"), "checkpoint run: there is no model in this folder"),
    ],
)
def test_what_makes_no_sense_is_named(evaluated: Path, arguments: tuple[str, ...], message: str) -> None:
    outcome = run_dtrak("evaluate", "lds", *arguments, cwd=evaluated)
    assert outcome.code == 2
    assert message in outcome.error
    assert not (evaluated / "nowhere").exists()


@pytest.mark.slow
def test_digits_from_training_to_a_table(tmp_path: Path) -> None:
    """The demo's model and eight halves, retrained for real: D-TRAK predicts them, chance does not."""
    for arguments in (
        ("train", "digits", "--out", "run"),
        ("generate", "run", "--count", "20"),
        (
            "evaluate", "lds", "run", "--method", "random,d-trak", "--subsets", "8", "--seeds", "1",
            "--output-timesteps", "50", "--output-noises", "1", "--damping", "auto", "--table", "table.md",
        ),
    ):  # fmt: skip
        outcome = run_dtrak(*arguments, cwd=tmp_path)
        assert outcome.code == 0, outcome.err
    methods = json.loads((tmp_path / "run" / "lds.json").read_text())["methods"]
    assert abs(methods["random"]["lds"]) < 15
    assert methods["d-trak"]["lds"] > 30
    assert "| d-trak |" in (tmp_path / "table.md").read_text()
