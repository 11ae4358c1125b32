"""The outputs of a model for an image: the value of each objective, averaged over timesteps and noises.

    f(x) = (1/KZ) Σ_t Σ_z ℓ(x, t, ε_tz)        for every ℓ of `OBJECTIVES`, from one forward pass each

L_Simple is the output that LDS predicts. The noise ε_tz depends on (seed, timestep, draw) alone: it is the same for
every image and every model, and it differs from the noise of the features.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dtrak.devices import reproducible, total_memory
from dtrak.errors import DtrakError
from dtrak.features.model_inputs import ModelInputs, model_inputs
from dtrak.gradients.featurizer import activation_bytes
from dtrak.gradients.objectives import OBJECTIVES
from dtrak.images.images import Images
from dtrak.models import DiffusionModel
from dtrak.models.conditions import moved
from dtrak.models.memory import copies_that_fit
from dtrak.noise import gaussian

PASS_BYTES = 32 << 20  # on a CPU, larger passes do not fit into the caches and are no faster


def images_in_a_pass(bytes_each: int, device: torch.device, memory: int) -> int:
    """Return how many noised images go through the network at once."""
    return max(1, PASS_BYTES // bytes_each) if device.type == "cpu" else copies_that_fit(bytes_each, memory)


@torch.no_grad()
def model_outputs(
    model: DiffusionModel, images: Images | ModelInputs, timesteps: Sequence[int], noises: int = 3, seed: int = 0
) -> dict[str, NDArray[np.float64]]:
    """Return the outputs of Q images, [Q] for each name of `OBJECTIVES`."""
    model.network.eval()
    inputs = model_inputs(model, images)
    copies = len(timesteps) * noises
    clean = inputs.tensor(range(len(inputs))).to(model.device)
    sums = torch.zeros(len(OBJECTIVES), len(images), dtype=torch.float64)
    size = images_in_a_pass(activation_bytes(model, inputs.condition([0])), model.device, total_memory(model.device))
    with reproducible():
        for start in range(0, copies * len(images), size):
            pairs = torch.arange(start, min(start + size, copies * len(images)))
            used, rows = pairs // len(images), pairs % len(images)  # all images with the first copy, then the second, …
            noised = [(timesteps[copy // noises], copy % noises) for copy in range(int(used[0]), int(used[-1]) + 1)]
            values = _values(model, inputs, clean, rows, noised, used - used[0], seed)
            bad = ~values.isfinite().all(0)
            if bad.any():
                first = int(bad.nonzero()[0])
                raise DtrakError(
                    f"the model's output is not finite for image {images.ids[rows[first]]} "
                    f"at timestep {noised[used[first] - used[0]][0]}"
                )
            sums.index_add_(1, rows, values)
    return dict(zip(OBJECTIVES, (sums / copies).numpy(), strict=True))


def _values(
    model: DiffusionModel,
    inputs: ModelInputs,
    clean: Tensor,
    rows: Tensor,
    noised: list[tuple[int, int]],
    used: Tensor,
    seed: int,
) -> Tensor:
    """Return ℓ, float64 [objectives, B], of the images `rows` [B].

    Image b is noised with the timestep and the draw of `noised[used[b]]`. `clean` holds all images, on the model's
    device.
    """
    noise = torch.stack([gaussian(model.shape, seed, "output", timestep, draw) for timestep, draw in noised])
    noise = noise[used].to(clean.device)
    timesteps = torch.tensor([timestep for timestep, _ in noised])[used].to(clean.device)
    images = clean[rows]
    condition = moved(inputs.condition(rows.tolist()), clean.device)
    predicted = model.predict_target(model.process.add_noise(images, noise, timesteps), timesteps, condition)
    target = model.process.target(images, noise, timesteps)
    weights = model.process.elbo_weights(timesteps)
    return torch.stack([objective(predicted, target, weights) for objective in OBJECTIVES.values()]).double().cpu()
