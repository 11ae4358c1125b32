"""Training: the paper's settings, the same weights for the same seed, and no step lost to a kill."""

import math
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from commands import dtrak, dtrak_started
from dtrak.errors import DtrakError
from dtrak.files import MACHINE, alone_in
from dtrak.images.images import load_images
from dtrak.models import load_model
from dtrak.models.memory import MEMORY_SHARE
from dtrak.noise import stream
from dtrak.runs.recipes import Training, load_recipe
from dtrak.runs.run import Run
from dtrak.runs.training import Trainer

MakeRecipe = Callable[..., Path]
WEIGHTS = "unet/diffusion_pytorch_model.safetensors"
KILLED = f"dtrak-{MACHINE}-{2**22 + 1}-0.tmp"  # ends the names of what a process wrote that is gone


def weights(model_folder: Path) -> bytes:
    return (model_folder / WEIGHTS).read_bytes()


@pytest.fixture
def make_trainer(recipe: MakeRecipe, tmp_path: Path) -> Callable[..., Trainer]:
    """A trainer as `dtrak train` makes it, of a new model each time."""

    def make(**settings: object) -> Trainer:
        run = Run(tmp_path, load_recipe(str(recipe())))
        torch.manual_seed(0)
        return Trainer(run.new_model(), run.train_images, Training(**{"epochs": 2, "batch_size": 250, **settings}))

    return make


def parameters(trainer: Trainer) -> Tensor:
    return torch.cat([value.detach().flatten() for value in trainer.model.network.parameters()])


# the settings


def test_the_optimiser_is_the_papers(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer()
    assert isinstance(trainer.optimizer, torch.optim.AdamW)
    group = trainer.optimizer.param_groups[0]
    assert (group["initial_lr"], group["betas"], group["weight_decay"]) == (1e-4, (0.95, 0.999), 1e-6)


def test_the_learning_rate_rises_over_a_tenth_and_falls_as_a_cosine(make_trainer: Callable[..., Trainer]) -> None:
    def factor(progress: float, warmup: float) -> float:
        trainer = make_trainer(epochs=200, batch_size=500, learning_rate=1.0, warmup=warmup)
        trainer.step = round(progress * trainer.steps)
        trainer.set_learning_rate()
        return float(trainer.optimizer.param_groups[0]["lr"])

    assert [factor(progress, 0.1) for progress in (0, 0.05, 0.1)] == [0, 0.5, 1]
    assert factor(0.55, 0.1) == pytest.approx(0.5)
    assert factor(0.325, 0.1) == pytest.approx((1 + math.sqrt(0.5)) / 2)
    assert factor(1, 0.1) == pytest.approx(0)
    assert factor(0, 0) == 1


def test_gradients_are_clipped(make_trainer: Callable[..., Trainer]) -> None:
    """Adam's first step has the length of the learning rate wherever the gradient is far above its epsilon of 1e-8."""
    before, moved = parameters(make_trainer()), {}
    for clip in (1.0, 1e-9):
        trainer = make_trainer(warmup=0.0, gradient_clip=clip)
        trainer.take_step()
        moved[clip] = (parameters(trainer) - before).abs()
    assert moved[1.0].median().item() == pytest.approx(1e-4, rel=0.01)
    assert moved[1e-9].max() < 0.1e-4


@pytest.mark.parametrize(("fitting", "parts"), [(250, [250]), (100, [84, 84, 82]), (1, [1] * 250)])
def test_a_batch_that_does_not_fit_goes_through_in_parts(
    make_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch, fitting: int, parts: list[int]
) -> None:
    """The step is that of the whole batch."""
    whole = make_trainer(gradient_clip=1e9)
    memory = (fitting + 0.5) * whole.bytes_per_image / MEMORY_SHARE
    monkeypatch.setattr(
        "dtrak.runs.training.total_memory",
        lambda device: int(memory),
    )
    split = make_trainer(gradient_clip=1e9)
    gradients, sizes = [], []
    split.model.network.register_forward_hook(lambda module, inputs, output: sizes.append(len(inputs[0])))
    for trainer in (whole, split):
        trainer.optimizer.zero_grad = lambda: None  # type: ignore[method-assign]
        no_dropout(trainer.model.network)
        trainer.take_step()
        gradients.append(torch.cat([value.grad.flatten() for value in trainer.parameters if value.grad is not None]))
    assert sizes == parts
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)


def no_dropout(network: torch.nn.Module) -> None:
    """Its masks would be others for other parts."""
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0


def test_passes_in_bfloat16_learn_the_same(make_trainer: Callable[..., Trainer]) -> None:
    exact, fast = make_trainer(), make_trainer(autocast=True)
    kinds = set()
    fast.model.network.conv_out.register_forward_hook(lambda module, inputs, output: kinds.add(output.dtype))
    before = parameters(exact)
    for trainer in (exact, fast):
        for _ in range(4):
            trainer.take_step()
    assert kinds == {torch.bfloat16}
    assert {value.dtype for value in fast.parameters} == {torch.float32}
    steps = [parameters(trainer) - before for trainer in (exact, fast)]
    assert torch.cosine_similarity(*steps, dim=0) > 0.9
    assert not torch.equal(*steps)


def test_an_epoch_shows_every_image_once_in_a_new_order(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(batch_size=300)
    shown: list[Tensor] = []
    for step in range(8):
        trainer.step = step
        shown.append(trainer.inputs.drawn(trainer.batch(), stream(step), flip=False))
    assert [len(batch) for batch in shown] == [300, 300, 300, 100] * 2
    first, second = torch.cat(shown[:4]), torch.cat(shown[4:])
    assert not torch.equal(first, second)
    everything = load_images("digits:train").tensor(range(1000))
    for epoch in (first, second):
        assert sorted(epoch.flatten(1).tolist()) == sorted(everything.flatten(1).tolist())


def test_half_of_the_images_are_flipped_where_the_recipe_says(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(flip=True)
    plain, flipped = (trainer.inputs.drawn(trainer.batch(), stream(0), flip) for flip in (False, True))
    unchanged, mirrored = ((one == flipped).flatten(1).all(1) for one in (plain, plain.flip(-1)))
    assert (unchanged | mirrored).all()
    assert 80 < mirrored.sum() < 170


def test_a_loss_that_is_not_finite_ends_the_training_with_advice(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(learning_rate=1e30, warmup=0.0, gradient_clip=1e30)
    trainer.take_step()
    with pytest.raises(DtrakError, match="training diverged: the loss is nan at step 1; lower learning_rate"):
        trainer.take_step()


# the command


def test_four_checkpoints_are_kept_and_the_last_is_the_model(finished_run: Path) -> None:
    checkpoints = sorted((finished_run / "checkpoints").iterdir())
    assert [path.name for path in checkpoints] == ["step-000002", "step-000004", "step-000006", "step-000008"]
    assert len({load_model(str(path)).fingerprint for path in checkpoints}) == 4
    assert weights(checkpoints[-1]) == weights(finished_run / "model")
    assert not (finished_run / "training.safetensors").exists()


def test_training_learns(recipe: MakeRecipe, tmp_path: Path) -> None:
    """The loss of held-out digits falls far below that of a network that answers nothing, which is 1."""
    path = recipe(training={"epochs": 10, "learning_rate": 1e-2, "batch_size": 50})
    outcome = dtrak("train", path, "--out", "run", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    model = load_model(str(tmp_path / "run" / "model"))
    clean = load_images("digits:validation").tensor(range(200))
    generator = torch.Generator().manual_seed(0)
    noise, timesteps = torch.randn(clean.shape, generator=generator), torch.randint(1000, (200,), generator=generator)
    with torch.no_grad():
        predicted = model.predict_target(model.process.add_noise(clean, noise, timesteps), timesteps)
    assert (predicted - noise).square().mean() < 0.35


def test_the_same_seed_gives_the_same_weights_and_another_gives_others(
    recipe: MakeRecipe, tmp_path: Path, finished_run: Path
) -> None:
    assert dtrak("train", recipe(), "--out", "again", cwd=tmp_path).code == 0
    assert weights(tmp_path / "again" / "model") == weights(finished_run / "model")
    assert dtrak("train", recipe(training={"seed": 1}), "--out", "other", cwd=tmp_path).code == 0
    assert weights(tmp_path / "other" / "model") != weights(finished_run / "model")


@pytest.mark.parametrize("format", ["npy", "txt"])
def test_a_subset_is_all_that_is_trained_on(recipe: MakeRecipe, tmp_path: Path, format: str) -> None:
    """The weights are those of a recipe whose images are these and no others."""
    ids = np.arange(3, 500)
    if format == "npy":
        np.save(tmp_path / "ids.npy", ids)
    else:
        (tmp_path / "ids.txt").write_text("".join(f"{one}\n" for one in ids))
    digits = load_images("digits:train")
    np.savez(tmp_path / "these.npz", images=digits.pixels(ids), ids=ids)
    subset = dtrak("train", recipe(), "--out", "subset", "--subset", f"ids.{format}", cwd=tmp_path)
    alone = dtrak("train", recipe(data={"train": "these.npz"}), "--out", "alone", cwd=tmp_path)
    assert (subset.code, alone.code) == (0, 0), subset.err + alone.err
    assert weights(tmp_path / "subset" / "model") == weights(tmp_path / "alone" / "model")
    assert Run.open(tmp_path / "subset").train_images.ids.tolist() == ids.tolist()


def test_killed_again_and_again_it_ends_with_the_same_weights_bit_for_bit(recipe: MakeRecipe, tmp_path: Path) -> None:
    asked = ("train", recipe(training={"epochs": 8, "checkpoints": 8}))
    assert dtrak(*asked, "--out", "whole", cwd=tmp_path).code == 0
    run, dice = tmp_path / "killed", random.Random(0)
    starts: list[int] = []
    for _ in range(3):
        before = len(list(run.glob("checkpoints/step-*")))
        with dtrak_started(*asked, "--out", "killed", cwd=tmp_path) as command:
            while command.runs and len(list(run.glob("checkpoints/step-*"))) <= before:
                time.sleep(0.002)
            time.sleep(dice.uniform(0, 0.1))
            command.signal(signal.SIGKILL)
            assert command.outcome().code == -signal.SIGKILL
        assert not (run / "model").exists()
        starts.append(len(list(run.glob("checkpoints/step-*"))))
    assert starts == sorted(set(starts)), "each went further than the one before"
    outcome = dtrak(*asked, "--out", "killed", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    for one in ("model", *(f"checkpoints/{path.name}" for path in (tmp_path / "whole" / "checkpoints").iterdir())):
        assert weights(run / one) == weights(tmp_path / "whole" / one), one
    assert not list(run.rglob(".*.tmp"))
    assert not (run / "training.safetensors").exists()


def test_leftovers_of_a_kill_are_neither_read_nor_kept(recipe: MakeRecipe, tmp_path: Path, finished_run: Path) -> None:
    run = tmp_path / "run"
    Run.create(run, load_recipe(str(recipe())))  # as a killed command leaves it
    (run / f".model.{KILLED}" / "unet").mkdir(parents=True)
    (run / "checkpoints" / f".step-000002.{KILLED}").mkdir(parents=True)
    (run / f".training.safetensors.{KILLED}").write_bytes(b"half a file")
    (run / "training.safetensors").write_bytes(b"damaged")
    assert dtrak("train", recipe(), "--out", "run", cwd=tmp_path).code == 0
    assert not list(run.rglob(".*.tmp"))
    assert weights(run / "model") == weights(finished_run / "model")


def test_two_processes_do_not_train_in_one_folder(recipe: MakeRecipe, tmp_path: Path) -> None:
    with alone_in(tmp_path / "run"):
        outcome = dtrak("train", recipe(), "--out", "run", cwd=tmp_path)
    assert (outcome.code, outcome.error) == (1, "another dtrak is at work in run: wait until it has ended")
    assert dtrak("train", recipe(), "--out", "run", cwd=tmp_path).code == 0


def test_a_state_goes_on_exactly_where_it_was_saved(make_trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    straight, resumed = make_trainer(), make_trainer()
    for _ in range(3):
        straight.take_step()
    straight.save(tmp_path / "state")
    resumed.load(tmp_path / "state")
    assert resumed.step == 3
    resumed.at_once = 1
    resumed.load(tmp_path / "state")
    assert resumed.at_once == 250, "though there is less memory now"
    for trainer in (straight, resumed):
        trainer.take_step()
    assert torch.equal(parameters(straight), parameters(resumed))
