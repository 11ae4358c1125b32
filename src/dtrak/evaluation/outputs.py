"""What a model does with a picture: each objective's value, averaged over timesteps and noises.

    f(x) = (1/KZ) Σ_t Σ_z ℓ(x, t, ε_tz)        for every ℓ of `OBJECTIVES`, from one forward pass each

L_Simple is the output that LDS predicts. The noise ε_tz depends on (seed, timestep, draw) alone: it is the same for
every image and every model, and another than that of the features.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dtrak.devices import reproducible
from dtrak.errors import DtrakError
from dtrak.features.inputs import ModelInputs, model_inputs
from dtrak.gradients.activations import activation_bytes
from dtrak.gradients.objectives import OBJECTIVES
from dtrak.images.images import Images
from dtrak.models import DiffusionModel
from dtrak.models.conditions import moved
from dtrak.models.memory import copies_that_fit, total_memory
from dtrak.noise import gaussian

# On a CPU, larger passes are no faster, and fall out of the caches.
PASS_BYTES = 32 << 20


def images_in_a_pass(bytes_each: int, device: torch.device, memory: int) -> int:
    """How many noised images go through the network at once."""
    return max(1, PASS_BYTES // bytes_each) if device.type == "cpu" else copies_that_fit(bytes_each, memory)


@torch.no_grad()
def model_outputs(
    model: DiffusionModel, images: Images | ModelInputs, timesteps: Sequence[int], noises: int = 3, seed: int = 0
) -> dict[str, NDArray[np.float64]]:
    """Of Q images [Q], by the names of `OBJECTIVES`."""
    model.network.eval()
    view = model_inputs(model, images)
    copies = len(timesteps) * noises
    clean = view.tensor(range(len(view))).to(model.device)
    sums = torch.zeros(len(OBJECTIVES), len(images), dtype=torch.float64)
    size = images_in_a_pass(activation_bytes(model, view.condition([0])), model.device, total_memory(model.device))
    with reproducible():
        for start in range(0, copies * len(images), size):
            pairs = torch.arange(start, min(start + size, copies * len(images)))
            used, rows = pairs // len(images), pairs % len(images)  # every image with one copy, then with the next
            noised = [(timesteps[copy // noises], copy % noises) for copy in range(int(used[0]), int(used[-1]) + 1)]
            values = _values(model, view, clean, rows, noised, used - used[0], seed)
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
    view: ModelInputs,
    clean: Tensor,
    rows: Tensor,
    noised: list[tuple[int, int]],
    used: Tensor,
    seed: int,
) -> Tensor:
    """ℓ of the images `rows` [B], each noised as one of `noised` (timestep, draw) that `used` [B] says.

    float64 [objectives, B]; `clean` is all of the view, on the model's device.
    """
    noise = torch.stack([gaussian(model.shape, seed, "output", timestep, draw) for timestep, draw in noised])
    noise = noise[used].to(clean.device)
    timesteps = torch.tensor([timestep for timestep, _ in noised])[used].to(clean.device)
    own = clean[rows]
    condition = moved(view.condition(rows.tolist()), clean.device)
    predicted = model.predict_target(model.add_noise(own, noise, timesteps), timesteps, condition)
    target = model.target(own, noise, timesteps)
    weights = model.elbo_weights(timesteps)
    return torch.stack([objective(predicted, target, weights) for objective in OBJECTIVES.values()]).double().cpu()
