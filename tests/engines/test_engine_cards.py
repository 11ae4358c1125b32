"""Which GPU a worker gets. The cards are made up, the workers are real: each says which one it sees."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from dtrak import DiffusionModel, engines, load_images
from dtrak.engines import make_engine
from dtrak.errors import UsageError
from dtrak.evaluation import counterfactual, training_jobs
from dtrak.evaluation.training_jobs import Retraining, TrainingJob, run_jobs
from dtrak.features.featurizing import Work, _shards_by
from dtrak.features.model_inputs import ModelInputs
from dtrak.features.spec import Spec
from dtrak.gradients.copies import Copies
from dtrak.gradients.objectives import simple
from dtrak.runs.recipes import load_recipe
from dtrak.runs.run import Run
from test_engines import seen_card

CARDS = ["3", "5"]


@pytest.fixture(autouse=True)
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtrak.engines.pool.gpus", lambda: CARDS)


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("cuda", (True, None)),
        ("cuda:0", (True, 0)),
        ("cuda:1", (True, 1)),
        ("cpu", (False, None)),
        ("mps", (False, None)),
    ],
)
def test_a_gpu_is_known_by_its_type_and_its_index(device: str, expected: tuple[bool, int | None]) -> None:
    assert engines.gpu_of(device) == expected


def test_a_card_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match=r"device cuda:2: there are 2 GPUs, counted from 0"):
        list(make_engine("pool").run(seen_card, 0.0, [1], gpu=True, card=2))


def test_the_card_that_was_asked_for_is_the_only_one_in_use() -> None:
    found = {result for _, result in make_engine("pool").run(seen_card, 0.3, range(3), gpu=True, card=1)}
    assert len(found) == 1, "one worker for one card"
    assert {card for _, card in found} == {"5"}


class Recorded:
    """An engine that keeps what it was asked for, and does nothing, or with `works` all of it here."""

    is_here = False

    def __init__(self, works: bool = False) -> None:
        self.works = works

    def run(self, work: Any, context: Any, jobs: Any, threads: int, gpu: bool, card: int | None) -> Iterator[Any]:
        self.asked = gpu, card, context.device
        return ((job, work(context, job)) for job in jobs) if self.works else iter(())


@pytest.mark.parametrize(("device", "card"), [("cuda", None), ("cuda:0", 0), ("cuda:1", 1)])
def test_retraining_asks_for_its_cards(device: str, card: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, or the one that was given; a worker sees one card only, which it calls `cuda`."""
    images = ModelInputs(load_images("digits:train").select(range(2)).in_memory())
    context = Retraining(load_recipe("digits"), images, np.ones((4, 2), dtype=np.bool_), device=device)
    engine = Recorded()
    assert list(run_jobs(context, [TrainingJob(0)], engine)) == []
    assert engine.asked == (True, card, "cuda")
    monkeypatch.setattr(training_jobs, "retrain", lambda context, job: {"device": context.device})
    (here,) = (arrays for _, arrays in run_jobs(context, [TrainingJob(0)], make_engine("process")))
    assert here["device"] == device


def black_picture(context: Retraining, job: TrainingJob) -> dict[str, Any]:
    """In place of a training and a drawing."""
    picture = np.zeros((len(job.draw), 1, 8, 8), dtype=np.float32)
    steps = context.recipe.generation.steps
    estimates = np.zeros((steps, *picture.shape), dtype=np.float32)
    return {"seconds": np.array(0.0), "pictures": picture, "estimates": estimates}


def test_counterfactuals_have_the_card_that_was_asked_for(own_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_jobs, "retrain", black_picture)
    question = replace(counterfactual.choose_pictures(Run.open(own_run), "cpu", count=1), device="cuda:1")
    sets = np.arange(1000)[None] < 5
    engine = Recorded(works=True)
    counterfactual.draw_without(question, sets, np.zeros((1, 1), dtype=np.int64), [None], engine)
    assert engine.asked == (True, 1, "cuda")


@pytest.mark.parametrize(
    ("device", "asked"),
    [("cuda:0", (True, None, "cuda")), ("cuda:1", (True, 1, "cuda")), ("cpu", (False, None, "cpu"))],
)
def test_features_ask_for_the_card_that_the_model_is_on(
    device: str, asked: tuple[bool, int | None, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that was put on `cuda` is on `cuda:0`: then any card will do. Where it is has to be made up, too."""
    model, images = tiny.unet(), ModelInputs(load_images("digits:train").select(range(2)))
    work = Work(model, Spec(projection_dim=8), [simple], Copies((0,)), {}, None, False)
    assert work.features.pass_bytes > 0
    moves: list[str] = []
    monkeypatch.setattr(DiffusionModel, "device", property(lambda self: torch.device(device)))
    monkeypatch.setattr(DiffusionModel, "to", lambda self, place: moves.append(str(place)))
    engine = Recorded()
    assert list(_shards_by(engine, work, images, [], [range(2)])) == []
    assert engine.asked == asked
    assert moves == ([device] if device == "cpu" else ["cpu", device]), "it comes back"


RAY = """
import os
from dtrak.engines import make_engine, pool
from dtrak.errors import UsageError
from test_engine_cards import CARDS
from test_engines import seen_card

pool.gpus = lambda: CARDS
print([card for _, (_, card) in make_engine("ray", 1).run(seen_card, 0.0, range(2), gpu=True, card=1)])
print(os.environ.get("CUDA_VISIBLE_DEVICES"))
try:
    list(make_engine("ray", address="127.0.0.1:1").run(seen_card, 0.0, [1], gpu=True, card=1))
except UsageError as error:
    print(error)
"""


@pytest.mark.slow  # a pool's workers have the same card, and test_engines.py has a cluster
def test_a_ray_cluster_of_its_own_has_the_same_card_and_a_running_one_cannot_be_told() -> None:
    """In a process of its own, as Ray reads its settings once."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    done = subprocess.run([sys.executable, "-c", RAY], capture_output=True, text=True, env=environment)
    assert done.stdout.splitlines() == [
        "['5', '5']",
        "None",
        "device cuda:1: a running Ray cluster chooses the GPUs itself: give --device cuda",
    ], done.stderr
