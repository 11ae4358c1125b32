"""Train a model, or a LoRA on top of one: minimise E ‖target − network(x_t, t)‖² over images, timesteps and noises.

A step depends only on the seed, its number, the number of images in a pass, the weights and the optimiser's state.
These are saved, so that a run that is killed continues from its last state and ends with the same weights, bit for bit.
"""

import math
import time
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers.optimization import get_cosine_schedule_with_warmup
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dtrak.devices import reproducible, threads_for, total_memory
from dtrak.errors import DtrakError
from dtrak.features.model_inputs import ModelInputs, model_inputs
from dtrak.files import alone_in, write_bytes, write_json
from dtrak.images.images import Images
from dtrak.models import DiffusionModel, new_model, save_model
from dtrak.models.conditions import Condition, moved, selected
from dtrak.models.memory import copies_that_fit, recomputes, training_bytes
from dtrak.noise import stream
from dtrak.progress import progress_bar
from dtrak.runs.recipes import Recipe, Training
from dtrak.runs.run import STATE, TIMES, Run

SECONDS_BETWEEN_STATES = 20.0  # a state is saved at every checkpoint as well


def train(run: Run, device: str) -> DiffusionModel:
    """Train the run's model, or continue where an earlier call was stopped; write model/ and checkpoints/."""
    if not run.is_trained:
        with alone_in(run.folder):
            if not run.is_trained:  # another process may have trained it before this one got the lock
                _train(run, device)
            (run.folder / STATE).unlink(missing_ok=True)
    return run.model().to(device)


def _train(run: Run, device: str) -> None:
    state, checkpoints = run.folder / STATE, run.folder / "checkpoints"
    torch.manual_seed(run.recipe.training.seed)
    model = run.new_model().to(device)
    inputs = model_inputs(model, run.train_images, run.latents, mirrored=run.recipe.training.flip)
    trainer = Trainer(model, inputs, run.recipe.training)
    trainer.load(state)
    saved = started = time.monotonic()
    first = trainer.step
    pass_bytes = trainer.at_once * trainer.bytes_per_image
    with reproducible(), threads_for(pass_bytes), progress_bar("train", trainer.steps, "steps") as advance:
        advance(trainer.step)
        while trainer.step < trainer.steps:
            trainer.take_step()
            advance(1)
            at_checkpoint = trainer.step in trainer.checkpoint_steps
            if at_checkpoint:
                save_model(trainer.model, checkpoints / f"step-{trainer.step:06d}")
            if at_checkpoint or time.monotonic() - saved > SECONDS_BETWEEN_STATES:
                trainer.save(state)
                saved = time.monotonic()
    if trainer.step > first:
        seconds = (time.monotonic() - started) / (trainer.step - first)
        write_json(run.folder / TIMES, {"steps": trainer.steps, "seconds_per_step": seconds})
    save_model(trainer.model, run.folder / "model")


def train_in_memory(recipe: Recipe, images: Images | ModelInputs, device: str) -> DiffusionModel:
    """Train the recipe's model as `train` does, but on these images, and write nothing."""
    torch.manual_seed(recipe.training.seed)
    shape = images.shape if isinstance(images, Images) else images.images.shape
    trainer = Trainer(new_model(recipe.model, shape, recipe.name).to(device), images, recipe.training)
    with reproducible():
        while trainer.step < trainer.steps:
            trainer.take_step()
    return trainer.model


class Trainer:
    """A model and its optimiser at a step of the training."""

    def __init__(self, model: DiffusionModel, images: Images | ModelInputs, settings: Training) -> None:
        self.model = model
        self.inputs = model_inputs(model, images, mirrored=settings.flip)
        self.settings = settings
        self.step = 0
        self.bytes_per_image = training_bytes(model, self.inputs.condition([0]))
        if recomputes(model, self.bytes_per_image, total_memory(model.device)):
            self.bytes_per_image = training_bytes(model, self.inputs.condition([0]))
        self.at_once = images_at_once(settings.batch_size, self.bytes_per_image, total_memory(model.device))
        self.steps_per_epoch = math.ceil(len(self.inputs) / settings.batch_size)
        self.steps = settings.epochs * self.steps_per_epoch
        self.checkpoint_steps = {
            round(self.steps * (index + 1) / settings.checkpoints) for index in range(settings.checkpoints)
        }
        self.parameters = list(model.parameters().values())
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.set_learning_rate()

    def set_learning_rate(self) -> None:
        """Let the learning rate go on from this step: it rises linearly over the warmup, then falls as a half cosine.

        The warmup is a share of all steps, not rounded to whole ones.
        """
        warmup = self.settings.warmup * self.steps
        self.schedule = get_cosine_schedule_with_warmup(self.optimizer, warmup, self.steps, last_epoch=self.step - 1)

    def take_step(self) -> None:
        """Take one step of the optimiser; a batch that is too large for the memory is divided into parts."""
        settings, model = self.settings, self.model
        random = stream(settings.seed, "training", self.step)
        rows = self.batch()
        clean = self.inputs.drawn(rows, random, settings.flip).to(model.device)
        noise = torch.from_numpy(random.standard_normal(clean.shape, dtype="float32")).to(model.device)
        timesteps = torch.from_numpy(random.integers(model.process.timesteps, size=len(clean))).to(model.device)
        torch.manual_seed(int(random.integers(2**62)))  # for dropout
        model.network.train()
        condition = self.condition(rows, random)
        for start in range(0, len(clean), self.at_once):
            part = slice(start, start + self.at_once)
            loss = self.loss(clean[part], noise[part], timesteps[part], selected(condition, part))
            if not loss.isfinite():
                reason = f"training diverged: the loss is {loss.item()} at step {self.step}; lower learning_rate"
                raise DtrakError(reason)
            (len(clean[part]) / len(clean) * loss).backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, settings.gradient_clip)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        model.network.eval()
        self.step += 1

    def loss(self, clean: Tensor, noise: Tensor, timesteps: Tensor, condition: Condition) -> Tensor:
        """Return the mean of ‖target − network(x_t, t)‖² over a part of a batch, each [b, …]."""
        model = self.model
        with torch.autocast(model.device.type, torch.bfloat16, enabled=self.settings.autocast):
            predicted = model.predict(model.process.add_noise(clean, noise, timesteps), timesteps, condition)
        return F.mse_loss(predicted.float(), model.process.training_target(clean, noise, timesteps))

    def batch(self) -> NDArray[np.int64]:
        """Return the rows of this step [B]; every epoch takes all rows in a new order."""
        epoch, step = divmod(self.step, self.steps_per_epoch)
        order = stream(self.settings.seed, "epoch", epoch).permutation(len(self.inputs))
        return order[step * self.settings.batch_size :][: self.settings.batch_size]

    def condition(self, rows: NDArray[np.int64], random: np.random.Generator) -> Condition:
        """Return the condition of these rows, each [B, …]; with `prompt_dropout`, some have that of an empty prompt."""
        condition = moved(self.inputs.condition(rows), self.model.device)
        if not self.settings.prompt_dropout:
            return condition
        dropped = torch.from_numpy(random.random(len(rows)) < self.settings.prompt_dropout).to(self.model.device)
        empty = moved(self.empty_condition, self.model.device)
        return {
            name: torch.where(dropped.view(-1, *[1] * (value.dim() - 1)), empty[name], value)
            for name, value in condition.items()
        }

    @cached_property
    def empty_condition(self) -> Condition:
        """The condition without information, such as that of an empty prompt, each [1, …]."""
        return {} if self.model.conditions is None else self.model.conditions.without()

    def save(self, path: Path) -> None:
        """Write weights, the optimiser's moments and the step, as one safetensors file."""
        tensors = {f"weights/{name}": value for name, value in self.model.trained_weights.items()}
        for index, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{index}/{name}": value for name, value in moments.items()}
        metadata = {"step": str(self.step), "at_once": str(self.at_once)}
        write_bytes(path, save({name: value.cpu() for name, value in tensors.items()}, metadata))

    def load(self, path: Path) -> None:
        """Restore the state that `save` has written; a state that is missing or cannot be read is ignored."""
        try:
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                step, at_once = (int((file.metadata() or {})[name]) for name in ("step", "at_once"))
        except (OSError, SafetensorError, KeyError, ValueError):
            return
        weights = {name.removeprefix("weights/"): v for name, v in tensors.items() if name.startswith("weights/")}
        self.model.load_trained_weights(weights)
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer/"):
                _, index, moment = name.split("/")
                state.setdefault(int(index), {})[moment] = value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        self.step, self.at_once = step, at_once
        self.set_learning_rate()


def images_at_once(batch_size: int, bytes_each: int, memory: int) -> int:
    """Return how many images of a batch go through a pass at once: all, or parts of equal size that fit."""
    return math.ceil(batch_size / math.ceil(batch_size / copies_that_fit(bytes_each, memory)))
