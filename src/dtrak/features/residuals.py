"""Compute how far the network's prediction is from its target, for every noised copy of images."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dtrak.devices import total_memory
from dtrak.features.inputs import ModelInputs
from dtrak.features.settings import FeatureSettings
from dtrak.files import as_npy, write_bytes
from dtrak.gradients.copies import Copies, timesteps_of
from dtrak.gradients.featurizer import activation_bytes
from dtrak.models import DiffusionModel
from dtrak.models.conditions import moved, repeated
from dtrak.models.memory import copies_that_fit
from dtrak.noise import stable_hash
from dtrak.progress import progress_bar

MOST_COPIES = 64  # that share a forward pass


def residuals_of(
    model: DiffusionModel, images: ModelInputs, settings: FeatureSettings, folder: Path
) -> NDArray[np.float32]:
    """Return r = √(mean (ε_θ − ε)²) of the copies whose gradients are kept apart, [N, copies]. They stay in the folder.

    Where the network's output is not finite, r is 0.
    """
    steps = timesteps_of(model, settings.timesteps, "visible")
    copies = Copies(steps, settings.draws, settings.noise, settings.seed, images.fingerprint)
    named = stable_hash(repr((model.fingerprint, copies, settings.autocast)))
    path = folder / f"residuals-{named:016x}.npy"
    if not path.exists():
        write_bytes(path, as_npy(_residuals(model, images, copies, settings.autocast)))
    return np.asarray(np.load(path, allow_pickle=False))


def _residuals(model: DiffusionModel, images: ModelInputs, copies: Copies, autocast: bool) -> NDArray[np.float32]:
    device, t = model.device, torch.tensor([timestep for timestep, _ in copies.pairs()])
    fitting = copies_that_fit(activation_bytes(model, images.condition([0])), total_memory(device))
    step = min(MOST_COPIES, fitting)
    at_once = max(1, step // len(t))  # images
    found = []
    was_training = model.network.training
    model.network.eval()
    with progress_bar("residuals", len(images), "images") as advance:
        for start in range(0, len(images), at_once):
            rows = list(range(start, min(start + at_once, len(images))))
            own = images.ids[rows].tolist() if copies.noise == "per-image" else [None] * len(rows)
            noises = torch.cat([copies.noises(model.shape, image) for image in own])  # [images · copies, …]
            clean = images.tensor(rows).repeat_interleave(len(t), 0)
            condition = repeated(images.condition(rows), len(t))
            for first in range(0, len(noises), step):
                part = slice(first, first + step)
                some, steps = {name: value[part] for name, value in condition.items()}, t.repeat(len(rows))[part]
                inputs = clean[part].to(device), noises[part].to(device), steps.to(device)
                with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=autocast):
                    predicted = model.predict_target(
                        model.process.add_noise(*inputs), inputs[2], moved(some, device)
                    ).float()
                errors = predicted - model.process.target(*inputs)
                found.append(errors.square().flatten(1).mean(1).sqrt().nan_to_num(0, 0).cpu())
            advance(len(rows))
    model.network.train(was_training)
    return torch.cat(found).view(len(images), len(t)).numpy()
