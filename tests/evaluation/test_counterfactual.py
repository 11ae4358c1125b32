"""Counterfactuals against retraining and drawing by hand; who shares a retraining; kills, damage, wrong questions."""

import json
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import dtrak
from commands import dtrak as command
from commands import dtrak_started
from conftest import TINY, tiny_recipe
from dtrak.engines.jobs import ThisProcess
from dtrak.errors import UsageError
from dtrak.evaluation.counterfactual import (
    Counterfactual,
    Redrawing,
    choose_pictures,
    cosines,
    counterfactual_run,
    embeddings,
    evaluate_counterfactual,
    highest,
    l2_distances,
    unique_sets,
)
from dtrak.evaluation.training_jobs import TrainingJob
from dtrak.features.encoders import load_encoder
from dtrak.methods import METHODS
from dtrak.models.sampling import sample, to_pixels
from dtrak.noise import stream
from dtrak.runs.drawing import generate
from dtrak.runs.recipes import load_recipe
from dtrak.runs.run import Run
from dtrak.runs.run_questions import settings_of
from dtrak.runs.training import train, train_in_memory

IMAGES, PICTURES, STEPS = 60, 4, 5
PASSED = [800, 600, 400, 200, 0]
REMOVE = 12
LITE = "efficientnet-lite0"
COMMAND = ("evaluate", "counterfactual", "run", "--engine", "process", "--encoder", LITE)


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 60 digits and four pictures that it drew. Not to be changed."""
    folder = tmp_path_factory.mktemp("small")
    recipe = load_recipe(str(tiny_recipe(folder / "tiny.yaml", training={"epochs": 3, "batch_size": 20})))
    (folder / "ids.txt").write_text("".join(f"{id_}\n" for id_ in range(0, 5 * IMAGES, 5)))
    run = Run.create(folder / "run", recipe, str(folder / "ids.txt"))
    generate(run, train(run, "cpu"), PICTURES, 3, STEPS)
    return folder / "run"


@pytest.fixture
def run(small_run: Path, tmp_path: Path) -> Run:
    """A copy of it that a test may change."""
    return Run.open(shutil.copytree(small_run, tmp_path / "run"))


class Counting(ThisProcess):
    """The engine of one process, which remembers its jobs."""

    def __init__(self) -> None:
        self.jobs: list[TrainingJob] = []

    def run(self, work: Any, context: Any, jobs: Any, threads: int = 1, *where: Any) -> Iterator[tuple[Any, Any]]:
        self.jobs += jobs
        yield from super().run(work, context, jobs, threads, *where)


class Thumbnail:
    """An encoder that sees a quarter of the pixels."""

    name = "thumbnail"

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        return pixels[:, ::2, ::2].reshape(len(pixels), -1).astype(np.float32) + 1


def evaluate(
    question: Redrawing, scores: dict[int | None, dict[str, np.ndarray]]
) -> tuple[list[Counterfactual], list[TrainingJob]]:
    engine = Counting()
    return evaluate_counterfactual(question, scores, Thumbnail(), engine, {}), engine.jobs


def with_top(*tops: Sequence[int]) -> np.ndarray:
    """Scores [Q, N] whose highest are at these places, the first highest of all."""
    values = np.zeros((len(tops), IMAGES), np.float32)
    for row, top in zip(values, tops, strict=True):
        row[list(top)] = np.arange(len(top), 0, -1)
    return values


def by_hand(run: Run, values: np.ndarray, seed: int, remove: int = REMOVE) -> list[np.ndarray]:
    """What a model draws that was trained without the highest of values [N]: x̂_0 at each step, then the picture."""
    stay = np.sort(np.argsort(-values)[remove:])
    model = train_in_memory(run.recipe, run.train_images.select(stay), "cpu")
    drawn = sample(model, [seed], STEPS, trajectory=True)
    return [*drawn.estimates[:, 0].numpy(), drawn.pictures[0].numpy()]


def pixels_of(picture: np.ndarray) -> np.ndarray:
    return to_pixels(torch.from_numpy(picture[None])).numpy()


def cosine_by_hand(encode: Any, picture: np.ndarray, other: np.ndarray) -> float:
    a, b = (torch.from_numpy(encode(pixels_of(one))) for one in (picture, other))
    return float(torch.nn.functional.cosine_similarity(a, b))


# the parts


def test_the_highest_scores_are_chosen_and_the_first_of_equal_ones() -> None:
    values = np.array([[1, 3, 2, 3, -1], [0, 0, 0, 0, 0]], np.float32)
    assert highest(values, 3).tolist() == [[False, True, True, True, False], [True, True, True, False, False]]
    random = np.random.default_rng(0).normal(size=(5, 40)).astype(np.float32)
    for row, chosen in zip(random, highest(random, 7), strict=True):
        assert set(np.flatnonzero(chosen)) == set(np.argsort(row)[-7:])


def test_unique_sets_are_each_there_once() -> None:
    removed = np.random.default_rng(0).random((4, 30, 3)) < 0.5
    sets, which = unique_sets(removed)
    assert len(sets) == len({tuple(one) for one in removed.reshape(-1, 3).tolist()})
    np.testing.assert_array_equal(sets[which], removed)


def test_distances() -> None:
    random = np.random.default_rng(0)
    a, b = random.uniform(-1, 1, (2, 20, 3, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(
        l2_distances(a, b), [np.sqrt(((x - y) ** 2).sum()) for x, y in zip(a, b, strict=True)], 1e-6
    )
    encode = Thumbnail()
    expected = [cosine_by_hand(encode, x, y) for x, y in zip(a, b, strict=True)]
    vectors = (embeddings(encode, np.concatenate([pixels_of(one) for one in side])) for side in (a, b))
    np.testing.assert_allclose(cosines(*vectors), expected, rtol=1e-5)


# the whole


def test_the_command_finds_what_retraining_by_hand_finds(run: Run) -> None:
    place = run.folder.parent
    methods = ["random", "raw-pixel-dot", "d-trak"]
    asked = ("--method", ",".join(methods), "--remove", REMOVE, "--count", 2, "--damping", 0.1, "--table", "t.csv")
    outcome = command(*COMMAND, *asked, cwd=place)
    assert outcome.code == 0, outcome.err
    assert "6 of 6 models to train from scratch, each without 12 of 60 images with 1 thread" in outcome.err

    model, folder = run.model(), run.folder / "counterfactual"
    queries = run.query_images(str(run.folder / "generated")).select([0, 1])
    settings = TINY["attribution"]
    scores = dtrak.attribute(model, run.train_images, queries, methods[1:], damping=0.1, **settings)
    values = {name: one.values for name, one in scores.items()}
    values["random"] = stream(0, "random").standard_normal((2, IMAGES), dtype=np.float32)
    found, pictures = json.loads((folder / "counterfactual.json").read_text()), np.load(folder / "pictures.npz")
    assert (found["seeds"], found["removed"], found["train"], found["encoder"]) == ([3, 4], REMOVE, IMAGES, LITE)
    assert (found["step"], found["retrainings"], found["scores"]["damping"]) == (None, 6, "0.1")
    assert list(found["methods"]) == pictures["methods"].tolist() == methods
    encode, rows = load_encoder(LITE), (place / "t.csv").read_text().splitlines()
    for index, method in enumerate(methods):
        for query, seed in enumerate([3, 4]):
            original = sample(model, [seed], STEPS).pictures[0].numpy()
            changed = by_hand(run, values[method][query], seed)[-1]
            of_method = found["methods"][method]
            assert of_method["l2"]["per_query"][query] == pytest.approx(np.linalg.norm(original - changed), rel=1e-3)
            cosine = cosine_by_hand(encode, original, changed)
            assert of_method["cosine"]["per_query"][query] == pytest.approx(cosine, abs=2e-3)
            for kept, expected in ((pictures["originals"], original), (pictures["counterfactuals"][index], changed)):
                assert np.abs(kept[query].astype(int) - pixels_of(expected)[0]).max() <= 1
        for name in ("l2", "cosine"):
            of_name = of_method[name]
            low, median, high = np.percentile(of_name["per_query"], [25, 50, 75])
            assert (of_name["median"], of_name["quartiles"]) == (pytest.approx(median), pytest.approx([low, high]))
        assert rows[1 + index].split(",")[0] == method
        assert float(rows[1 + index].split(",")[1]) == pytest.approx(of_method["l2"]["median"])
        if method != "random":
            more = np.subtract(*(found["methods"][one]["l2"]["per_query"] for one in (method, "random")))
            expected = [more.mean(), abs(more[0] - more[1]) / 2]  # of two differences, the standard error is half of it
            assert [float(one) for one in rows[1 + index].split(",")[-2:]] == pytest.approx(expected)
    for name in ("boxplots.png", "pictures.png"):
        with Image.open(folder / name) as image:
            image.verify()

    before = {path: path.stat().st_mtime_ns for path in (folder.parent / "trainings").glob("*.npz")}
    again = command(*COMMAND, *asked, cwd=place)
    assert again.code == 0
    assert "to train" not in again.err
    assert again.out == outcome.out
    assert {path: path.stat().st_mtime_ns for path in (folder.parent / "trainings").glob("*.npz")} == before


def test_at_a_step_estimates_are_compared_and_journey_trak_has_its_own_scores(run: Run) -> None:
    methods, steps = ["random", "journey-trak"], [600, 200]
    question, engine = choose_pictures(run, "cpu", 2, REMOVE, steps), Counting()
    results = counterfactual_run(
        question, [METHODS[one] for one in methods], replace(settings_of(run), encoder=LITE, damping="auto"), engine
    )
    assert [result.step for result in results] == steps
    model, seeds = question.model, question.seeds
    values: dict[str, list[np.ndarray]] = {
        "random": [stream(0, "random").standard_normal((2, IMAGES), dtype=np.float32)] * 2,
        "journey-trak": [
            dtrak.attribute(
                model,
                run.train_images,
                question.queries,
                "journey-trak",
                **TINY["attribution"],
                damping="auto",
                ddim_steps=STEPS,
                step=step,
            ).values
            for step in steps
        ],
    }
    removed = {
        tuple(highest(one, REMOVE)[query]) for of_steps in values.values() for one in of_steps for query in (0, 1)
    }
    assert len(removed) == len(engine.jobs)
    assert len(removed) > 4, "journey-trak says the same at both steps"
    originals = sample(model, seeds, STEPS, trajectory=True).estimates.numpy()
    for index, (step, result) in enumerate(zip(steps, results, strict=True)):
        place = PASSED.index(step)
        for effect in result.effects:
            for query, seed in enumerate(seeds):
                changed = by_hand(run, values[effect.method][index][query], seed)[place]
                expected = np.linalg.norm(originals[place, query] - changed)
                assert effect.l2[query] == pytest.approx(expected, rel=1e-3)
        kept = json.loads((run.folder / "counterfactual" / f"step-{step}" / "counterfactual.json").read_text())
        assert kept["step"] == step
        assert kept["methods"]["random"]["l2"]["per_query"] == pytest.approx(result.effects[0].l2.tolist())
    # The finished pictures of what the steps have in common were drawn along with them.
    counterfactual_run(
        choose_pictures(run, "cpu", 2, REMOVE),
        [METHODS["random"]],
        replace(settings_of(run), encoder=LITE),
        more := Counting(),
    )
    assert not more.jobs


# who shares a retraining


def test_the_same_removed_set_is_trained_once_for_queries_methods_and_steps(run: Run) -> None:
    question = choose_pictures(run, "cpu", 3, 2, [400, 200])
    shared = {"a": with_top([0, 1], [1, 0], [2, 3]), "b": with_top([2, 3], [0, 1], [2, 3])}
    results, jobs = evaluate(question, {400: shared, 200: shared})
    # {0, 1} for all three queries but the last; {2, 3} for the first and the last
    assert sorted(job.draw for job in jobs) == [(3, 4), (3, 5)]
    assert [result.settings["retrainings"] for result in results] == [2, 2]
    for result in results:
        a, b = result.effects
        np.testing.assert_array_equal(a.pictures[1:], b.pictures[1:])
        assert a.l2[0] != b.l2[0]
    assert not np.array_equal(results[0].effects[0].l2, results[1].effects[0].l2)


def test_another_method_reuses_what_is_trained(run: Run) -> None:
    question = choose_pictures(run, "cpu", 2, 2)
    one = {"a": with_top([0, 1], [2, 3])}
    (first,), jobs = evaluate(question, {None: one})
    assert len(jobs) == 2
    (both,), jobs = evaluate(question, {None: one | {"b": with_top([4, 5], [2, 3])}})
    assert [job.draw for job in jobs] == [(3,)]
    np.testing.assert_array_equal(both.effects[0].l2, first.effects[0].l2)
    assert both.effects[1].l2[1] == both.effects[0].l2[1]


def test_another_model_is_trained_anew(run: Run) -> None:
    scores: dict[int | None, dict[str, np.ndarray]] = {None: {"a": with_top([0, 1])}}
    evaluate(choose_pictures(run, "cpu", 1, 2), scores)
    recipe = run.recipe.model_copy(update={"training": run.recipe.training.model_copy(update={"seed": 1})})
    _, jobs = evaluate(choose_pictures(Run(run.folder, recipe), "cpu", 1, 2), scores)
    assert len(jobs) == 1


# kills and damage


def test_a_killed_command_goes_on_with_what_is_unfinished(run: Run) -> None:
    place, jobs = run.folder.parent, run.folder / "trainings"
    asked = (*COMMAND, "--method", "random,raw-pixel-dot", "--remove", REMOVE)
    with dtrak_started(*asked, cwd=place) as started:
        while not list(jobs.glob("[!.]*.npz")):
            assert started.runs, started.outcome().err
            time.sleep(0.002)
        started.signal(signal.SIGKILL)
        assert started.outcome().code == -signal.SIGKILL
    finished = {path: path.read_bytes() for path in jobs.glob("[!.]*.npz")}
    assert 1 <= len(finished) < 2 * PICTURES
    assert not (run.folder / "counterfactual" / "counterfactual.json").exists()
    outcome = command(*asked, cwd=place)
    assert outcome.code == 0, outcome.err
    assert f"{2 * PICTURES - len(finished)} of {2 * PICTURES} models to train" in outcome.err
    assert len(list(jobs.glob("*.npz"))) == 2 * PICTURES, "something was left behind"
    assert all(path.read_bytes() == content for path, content in finished.items())


def test_a_damaged_job_is_done_again(run: Run) -> None:
    question = choose_pictures(run, "cpu", 2, 2)
    scores: dict[int | None, dict[str, np.ndarray]] = {None: {"a": with_top([0, 1], [2, 3])}}
    (first,), _ = evaluate(question, scores)
    path = next((run.folder / "trainings").glob("*.npz"))
    path.write_bytes(path.read_bytes()[:-50])
    (second,), jobs = evaluate(question, scores)
    assert len(jobs) == 1
    np.testing.assert_array_equal(first.effects[0].l2, second.effects[0].l2)


# wrong questions


FAULTS = {
    "--remove 0": "'--remove': '0' is not a whole number from 1 on",
    "--remove 60": "remove 60: give a number from 1 to 59, as digits:train has 60 images",
    "--count 5": "count 5: run/generated holds 4 pictures (`dtrak generate run --count 5`)",
    "--step 1000": "step 1000: 5 steps of DDIM pass through 800, 600, … 0",
    "--step 400,soon": "step 'soon': give a timestep such as 400, or several: 400,300",
    "--method d-track": "unknown method 'd-track': choose from random, ",
    "--table t.doc": "cannot write a table to t.doc: its ending has to be one of .csv, .md, .tex, .txt",
    "--encoder clip": "no encoder 'clip': give efficientnet-lite0, the folder of a CLIP model, or a hub id",
    "--engine cloud": "unknown engine 'cloud': choose from process, pool, ray",
    "--damping much": "'much'",
    "--method d-trak-ensemble": "there are no retrained models: give a benchmark folder as --retrained",
}


@pytest.mark.parametrize("typed", FAULTS)
def test_a_wrong_question_is_refused_before_any_work(small_run: Path, typed: str) -> None:
    outcome = command(*COMMAND, *typed.split(), cwd=small_run.parent)
    assert outcome.code == 2
    assert FAULTS[typed] in outcome.error
    assert not (small_run / "counterfactual").exists()
    assert not (small_run / "features").exists()


def test_removing_nothing_and_removing_all_is_refused(small_run: Path) -> None:
    for remove in (0, -1, IMAGES, IMAGES + 1):
        with pytest.raises(UsageError, match=f"remove {remove}: give a number from 1 to 59"):
            choose_pictures(Run.open(small_run), "cpu", remove=remove)
    assert choose_pictures(Run.open(small_run), "cpu", remove=IMAGES - 1).remove == IMAGES - 1
    assert choose_pictures(Run.open(small_run), "cpu").remove == IMAGES // 5


def test_pictures_are_missing_or_without_seeds_or_not_the_models(run: Run) -> None:
    generated = run.folder / "generated"
    scores: dict[int | None, dict[str, np.ndarray]] = {None: {"a": with_top([0, 1], [2, 3])}}
    Image.new("L", (8, 8), 200).save(generated / "seed-00004.png")
    with pytest.raises(UsageError, match=r"seed-00004.* is not what .*model draws from seed 4: `dtrak generate .*run`"):
        evaluate(choose_pictures(run, "cpu", 2, 2), scores)
    assert not (run.folder / "counterfactual").exists()
    (generated / "metadata.jsonl").unlink()
    with pytest.raises(UsageError, match="does not say from which seeds its pictures were drawn"):
        choose_pictures(run, "cpu")
    shutil.rmtree(generated)
    with pytest.raises(UsageError, match="has no generated pictures yet"):
        choose_pictures(run, "cpu")
