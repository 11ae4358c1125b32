"""Compute how far the network's prediction is from its target, for every noised copy of images."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dtrak.features.inputs import ModelInputs
from dtrak.features.settings import FeatureSettings
from dtrak.files import as_npy, write_bytes
from dtrak.gradients.activations import activation_bytes
from dtrak.gradients.featurizer import Copies
from dtrak.gradients.timesteps import select_timesteps
from dtrak.models import DiffusionModel
from dtrak.models.conditions import moved, repeated
from dtrak.models.memory import copies_that_fit, total_memory
from dtrak.noise import stable_hash
from dtrak.progress import progress_bar

MOST_COPIES = 64  # that share a forward pass


def residuals_of(
    model: DiffusionModel, images: ModelInputs, settings: FeatureSettings, folder: Path
) -> NDArray[np.float32]:
    """Return r = √(mean (ε_θ − ε)²) of the copies whose gradients are kept apart, [N, copies]. They stay in the folder.

    Where the network's output is not finite, r is 0.
    """
    steps = select_timesteps(settings.timesteps, model.timesteps, middles=True)
    copies = Copies(steps, settings.draws, settings.noise, settings.seed, images.fingerprint)
    named = stable_hash(repr((model.fingerprint, copies, settings.autocast)))
    path = folder / f"residuals-{named:016x}.npy"
    if not path.exists():
        write_bytes(path, as_npy(_residuals(model, images, copies, settings.autocast)))
    return np.asarray(np.load(path, allow_pickle=False))


def _residuals(model: DiffusionModel, images: ModelInputs, copies: Copies, autocast: bool) -> NDArray[np.float32]:
    t = torch.tensor([timestep for timestep, _ in copies.pairs()], device=model.device)
    step = min(MOST_COPIES, copies_that_fit(activation_bytes(model, images.condition([0])), total_memory(model.device)))
    found = torch.empty(len(images), len(t))
    was_training = model.network.training
    model.network.eval()
    with progress_bar("residuals", len(images), "images") as advance:
        for row, id_ in enumerate(images.ids.tolist()):
            noises = copies.noises(model.shape, None if copies.noise == "shared" else id_)
            clean, condition = images.tensor([row]), moved(images.condition([row]), model.device)
            for start in range(0, len(t), step):
                part = slice(start, start + step)
                noise, own = noises[part].to(model.device), clean.expand_as(noises[part]).to(model.device)
                with torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16, enabled=autocast):
                    noised = model.add_noise(own, noise, t[part])
                    predicted = model.predict_target(noised, t[part], repeated(condition, len(own))).float()
                errors = predicted - model.target(own, noise, t[part])
                found[row, part] = errors.square().flatten(1).mean(1).sqrt().nan_to_num(0, 0).cpu()
            advance(1)
    model.network.train(was_training)
    return found.numpy()
