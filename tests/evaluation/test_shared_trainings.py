"""RUN/trainings: nothing is trained twice, whoever asks first, and a result has another name if its question has."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dtrak.engines.jobs import ThisProcess
from dtrak.evaluation.benchmark_making import RetrainingSettings, queries_of
from dtrak.evaluation.counterfactual import choose_pictures, evaluate_counterfactual
from dtrak.evaluation.left_out import groups_of, leave_groups_out
from dtrak.evaluation.training_jobs import Outputs, Retraining, TrainingJob, results
from dtrak.fingerprints import hash_of
from dtrak.models import DiffusionModel, new_model
from dtrak.runs.drawing import generate
from dtrak.runs.recipes import load_recipe
from dtrak.runs.run import TRAININGS, Run
from dtrak.runs.training import train
from tiny_stable_diffusion import SIDE, save_paintings

PAINTINGS, STEPS = 6, 2
Context = tuple[Retraining, TrainingJob]


class Counting(ThisProcess):
    """The engine of one process, which counts its jobs."""

    def __init__(self) -> None:
        self.jobs = 0

    def run(self, work: Any, context: Any, jobs: Any, threads: int = 1, *where: Any) -> Iterator[tuple[Any, Any]]:
        self.jobs += len(jobs)
        yield from super().run(work, context, jobs, threads, *where)


class Thumbnail:
    name = "thumbnail"

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        return pixels[:, ::4, ::4].reshape(len(pixels), -1).astype(np.float32) + 1


def new_run(folder: Path, base: Path) -> Run:
    """A LoRA's run that nothing was done for, beside its paintings: two of each artist."""
    data = {"train": str(save_paintings(folder / "paintings", PAINTINGS)), "size": SIDE}
    changes = {
        "data": {**data, "select": None, "validation": None, "select_validation": None},
        "model": {"base": str(base), "lora": {"rank": 2}, "prompt": "{caption}"},
        "training": {"epochs": 1, "batch_size": 3},
        "generation": {"count": 2, "steps": STEPS},
    }
    return Run.create(folder / "run", load_recipe("artbench2", "small", changes))


@pytest.fixture(scope="module")
def drawn_run(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run with two pictures. Not to be changed."""
    run = new_run(tmp_path_factory.mktemp("shared"), base)
    generate(run, train(run, "cpu"), 2, 0, STEPS)
    return run.folder


def by_credit(run: Run) -> int:
    """Leave out each artist, as `dtrak evaluate credit` does; return how many models were trained."""
    settings, engine = RetrainingSettings(seeds=1, timesteps=2, noises=1), Counting()
    leave_groups_out(run, "artist", settings, engine, queries_of(run, settings))
    return engine.jobs


def by_counterfactual(run: Run) -> int:
    """Leave out anna's paintings, and those of bert, as `dtrak evaluate counterfactual` does for two pictures."""
    groups, membership = groups_of(run.train_images, "artist")
    scores = np.stack([membership == g for g in range(2)]).astype(np.float32)
    question, engine = choose_pictures(run, "cpu", remove=PAINTINGS // len(groups)), Counting()
    evaluate_counterfactual(question, {None: {"mine": scores}}, Thumbnail(), engine, {})
    return engine.jobs


def test_nothing_is_trained_twice_whoever_asks_first(drawn_run: Path, tmp_path: Path) -> None:
    found = []
    for number, order in enumerate(((by_credit, by_counterfactual), (by_counterfactual, by_credit))):
        run = Run.open(shutil.copytree(drawn_run, tmp_path / f"run-{number}"))
        counts = {ask: ask(run) for ask in order}
        assert counts == {by_credit: 4, by_counterfactual: 2}, "three artists and all; other pictures, without losses"
        assert [ask(run) for ask in (*order, *reversed(order))] == [0, 0, 0, 0]
        found.append({path.name: path.read_bytes() for path in (run.folder / TRAININGS).glob("*.npz")})
        assert len(found[-1]) == 6
    assert found[0] == found[1]

    # The job is what is left out and what is asked: it may stand in another row, among other sets.
    _, membership = groups_of(run.train_images, "artist")
    question = choose_pictures(run, "cpu", remove=2)
    prompts = question.prompts
    assert prompts is not None
    for masks, subset in ((np.stack([membership != g for g in (2, 1, 0)]), 2), ((membership != 0)[None], 0)):
        context, engine = Retraining.of(run, question.model, masks), Counting()
        job = TrainingJob(subset, 0, (question.seeds[0],), (prompts[0],), trajectory=True)
        with results(run.folder / TRAININGS, context, [job], engine) as result:
            assert result(job)["pictures"].shape[0] == 1
        assert engine.jobs == 0


def repaint(folder: Path, row: int) -> None:
    path = folder / f"{row:03d}.png"
    with Image.open(path) as image:
        pixels = np.array(image)
    pixels[3, 4, 0] ^= 1
    Image.fromarray(pixels).save(path)


def swap(one: Path, other: Path) -> None:
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def correct(folder: Path, row: int, **columns: str) -> None:
    path = folder / "metadata.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[row] |= columns
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def shift(weights: torch.nn.Module | torch.Tensor) -> None:
    tensor = weights if isinstance(weights, torch.Tensor) else next(weights.parameters())
    with torch.no_grad():
        tensor.view(-1)[0] += 1


def frozen(model: DiffusionModel) -> torch.Tensor:
    trained = model.trained_weights
    return next(value for name, value in model.network.state_dict().items() if name not in trained)


def text_encoder(model: DiffusionModel) -> torch.nn.Module:
    assert model.prompts is not None
    found: torch.nn.Module = model.prompts.encoder.pipeline.text_encoder
    return found


def autoencoder(model: DiffusionModel) -> torch.nn.Module:
    assert model.autoencoder is not None
    return model.autoencoder.network


# What changes, of the folder of paintings or of the model, and whether the result is another one.
ON_DISK: dict[str, tuple[Callable[[Path], None], bool]] = {
    "a pixel": (lambda folder: repaint(folder, 0), True),
    "a caption": (lambda folder: correct(folder, 0, caption="a ring by anna"), True),
    "the order": (lambda folder: swap(folder / "000.png", folder / "003.png"), True),  # both have one caption
    "a pixel of what is left out": (lambda folder: repaint(folder, PAINTINGS - 1), False),
    "an artist": (lambda folder: correct(folder, 0, artist="dora"), False),
    "nothing": (lambda folder: (folder / "000.png").touch(), False),
}
OF_MODEL: dict[str, tuple[Callable[[DiffusionModel], None], bool]] = {
    "a weight of the network": (lambda model: shift(frozen(model)), True),
    "a weight of the autoencoder": (lambda model: shift(autoencoder(model)), True),
    "a weight of the text encoder": (lambda model: shift(text_encoder(model)), True),
    "a weight that is trained": (lambda model: shift(next(iter(model.trained_weights.values()))), False),
}
OF_JOB: dict[str, Callable[[Retraining, TrainingJob], Context]] = {
    "the seed": lambda context, job: (context, TrainingJob(0, 1, job.draw, job.prompts)),
    "what is left out": lambda context, job: (Retraining(**vars(context) | {"masks": ~context.masks}), job),
    "the outputs' timesteps": lambda context, job: (Retraining(**vars(context) | {"outputs": Outputs((5,), 1)}), job),
    "the outputs' noise": lambda context, job: (Retraining(**vars(context) | {"outputs": Outputs((1,), 1, 1)}), job),
    "the queries": lambda context, job: (
        Retraining(**vars(context) | {"queries": {"generated": context.images.select([1, 0])}}),
        job,
    ),
    "the picture's seed": lambda context, job: (context, TrainingJob(0, 0, (8,), job.prompts)),
    "the picture's prompt": lambda context, job: (context, TrainingJob(0, 0, job.draw, ("a disc by bert",))),
    "the trajectory": lambda context, job: (context, TrainingJob(0, 0, job.draw, job.prompts, trajectory=True)),
}


def asked(run: Run, change: Callable[[DiffusionModel], None] = lambda model: None) -> Context:
    """A job without the last two paintings, which measures the first two."""
    model = new_model(run.recipe.model, run.train_images.shape, "tiny")
    change(model)
    mask = np.arange(PAINTINGS) < PAINTINGS - 2
    queries = {"generated": run.train_images.select([0, 1])}
    context = Retraining.of(run, model, mask[None], queries, outputs=Outputs((1,), 1))
    return context, TrainingJob(0, 0, (7,), ("a disc by anna",))


def name(context: Retraining, job: TrainingJob) -> str:
    return hash_of(context.part(job))


def test_a_result_has_another_name_if_it_would_be_another_one(base: Path, tmp_path: Path) -> None:
    run = new_run(tmp_path, base)
    context, job = asked(run)
    before = name(context, job)
    assert name(*asked(run)) == before
    for what, of_model in OF_MODEL.items():
        assert (name(*asked(run, of_model[0])) != before) == of_model[1], what
    names = {what: name(*change(context, job)) for what, change in OF_JOB.items()}
    assert len({before, *names.values()}) == 1 + len(OF_JOB), names

    whole = shutil.copytree(tmp_path / "paintings", tmp_path / "whole")
    for what, on_disk in ON_DISK.items():
        shutil.rmtree(tmp_path / "paintings")
        shutil.copytree(whole, tmp_path / "paintings")
        on_disk[0](tmp_path / "paintings")
        assert (name(*asked(Run(run.folder, run.recipe))) != before) == on_disk[1], what
