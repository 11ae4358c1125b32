"""The gradient of an objective, averaged over an image's noised copies and projected: the feature of the image.

    φ(x) = Pᵀ ∇_θ (1/KZ) Σ_t Σ_z ℓ(x, t, ε)        over K timesteps t and Z noises ε

The KZ copies of one image are a batch and φ is linear in the gradient of their mean, so one ordinary backward pass
gives it, for any architecture. Images of models so small that overhead dominates share a pass (`backward.py`).
"""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from dtrak.devices import reproducible, threads_for
from dtrak.errors import DtrakError, UsageError
from dtrak.gradients.activations import activation_bytes
from dtrak.gradients.backward import Receiver, can_share_a_pass, gradient_of_each_image, gradient_of_the_batch
from dtrak.gradients.objectives import get_objective
from dtrak.gradients.projections import Projection
from dtrak.models import DiffusionModel
from dtrak.models.conditions import Condition, moved, repeated
from dtrak.models.memory import copies_that_fit, total_memory
from dtrak.noise import gaussian

Id = str | int

# Images share a pass until their activations fill this much: by then its overhead has vanished beside its work.
SHARED_PASS_BYTES = 256 << 20
MOST_SHARED_IMAGES = 32


@dataclass(frozen=True)
class Copies:
    """Which noised copies of an image the average runs over."""

    timesteps: tuple[int, ...]
    draws: int = 1  # noises at each timestep
    noise: Literal["shared", "per-image"] = "shared"  # the same for every image, or its own
    seed: int = 0
    of: str = ""  # names the set of images, as ids can be the same in two

    def pairs(self) -> list[tuple[int, int]]:
        """(timestep, draw) of every copy."""
        return [(timestep, draw) for timestep in self.timesteps for draw in range(self.draws)]

    def noises(self, shape: tuple[int, ...], image: Id | None) -> Tensor:
        """ε of every copy, [KZ, C, H, W]: fixed by seed, timestep and draw; and by the image, if one is given."""
        name = () if image is None else (f"image {image} of {self.of}",)
        return torch.stack([gaussian(shape, self.seed, timestep, draw, *name) for timestep, draw in self.pairs()])


class NotFiniteError(DtrakError):
    """NaN or infinity came out for one image at one timestep."""


class Featurizer:
    """Computes φ for images, for one objective or for several that share the forward pass."""

    def __init__(
        self,
        model: DiffusionModel,
        objectives: Sequence[str],
        copies: Copies,
        projection: Projection,
        parameters: dict[str, nn.Parameter],
        *,
        condition: Condition | None = None,  # of one image, as an example
        batch_size: int | None = None,  # images that share a pass; by the size of their activations if None
        autocast: bool = False,  # forward passes in bfloat16; gradients are added up in float32 all the same
    ) -> None:
        self.model = model
        self.objectives = [get_objective(name) for name in objectives]
        self.copies = copies
        self.projection = projection
        self.parameters = parameters
        self.autocast = autocast
        self.timesteps = torch.tensor([timestep for timestep, _ in copies.pairs()], device=model.device)
        self._shared_noise = copies.noises(model.shape, None) if copies.noise == "shared" else None
        per_copy = activation_bytes(model, condition)
        self.copies_at_once = copies_that_fit(per_copy, total_memory(model.device))
        self.batch_size = self._choose_batch_size(per_copy, batch_size, condition)
        self.projection_seconds = 0.0
        self.pass_bytes = per_copy * min(self.copies_at_once, self.batch_size * len(self.timesteps))

    def _choose_batch_size(self, bytes_per_copy: int, asked: int | None, condition: Condition | None) -> int:
        largest = 4 * max(value.numel() for value in self.parameters.values())
        fitting = SHARED_PASS_BYTES // (bytes_per_copy * len(self.timesteps) + largest)
        wanted = asked or min(fitting, MOST_SHARED_IMAGES)
        if wanted < 2 or can_share_a_pass(self.model, set(self.parameters), condition):
            return max(1, wanted)
        if asked:
            raise UsageError(f"batch-size {asked}: the images of this network cannot share a pass; only 1 will do")
        return 1

    def __call__(self, clean: Tensor, ids: Sequence[Id], condition: Condition | None = None) -> Tensor:
        """φ of the images `clean` [B, C, H, W], float32 [objectives, B, k] on the CPU.

        `clean` can also be [B, K, C, H, W], with an image of its own for every timestep. `condition` is that of each
        image, [B, …].
        """
        moved_condition = moved(condition or {}, self.model.device)
        out = torch.zeros(len(self.objectives), len(clean), self.projection.dim, device=self.model.device)
        with threads_for(self.pass_bytes), reproducible():
            for start in range(0, len(clean), self.batch_size):
                rows = slice(start, start + self.batch_size)
                own = {name: value[rows] for name, value in moved_condition.items()}
                self._add_images(out[:, rows], clean[rows].to(self.model.device), ids[rows], own)
        return out.cpu()

    def _add_images(self, out: Tensor, clean: Tensor, ids: Sequence[Id], condition: Condition) -> None:
        """out [objectives, b, k] += φ of b images that share their passes."""
        noises = torch.stack([self._noise_of(image) for image in ids]).to(clean.device)  # [b, KZ, C, H, W]
        if clean.dim() < noises.dim():
            clean = clean[:, None].expand_as(noises)
        else:
            clean = clean.repeat_interleave(self.copies.draws, 1)
        step = max(1, self.copies_at_once // len(clean))
        for start in range(0, len(self.timesteps), step):
            part = slice(start, start + step)
            self._add_pass(out, clean[:, part], noises[:, part], self.timesteps[part], ids, condition)
        finite = out.isfinite().all(2).all(0)
        if not finite.all():
            bad = int((~finite).nonzero()[0])
            own = {name: value[bad : bad + 1] for name, value in condition.items()}
            self._find_timestep(clean[bad : bad + 1], noises[bad : bad + 1], ids[bad], own)

    def _noise_of(self, image: Id) -> Tensor:
        if self._shared_noise is not None:
            return self._shared_noise
        return self.copies.noises(self.model.shape, image)

    def _add_pass(
        self, out: Tensor, clean: Tensor, noises: Tensor, timesteps: Tensor, ids: Sequence[Id], condition: Condition
    ) -> None:
        """One forward pass over c copies of each of b images, and one backward pass for each objective.

        `clean` and `noises` are [b, c, C, H, W], the `condition` [b, …].
        """
        images = len(noises)
        noise = noises.flatten(0, 1)  # [b·c, C, H, W], the copies of one image side by side
        steps = timesteps.repeat(images)
        flat = clean.flatten(0, 1)
        noisy, target = (mix(flat, noise, steps) for mix in (self.model.add_noise, self.model.target))
        of_copies = repeated(condition, len(timesteps))
        current = 0  # the objective whose backward pass is under way

        def receive(name: str, gradient: Tensor) -> None:
            started = time.perf_counter()
            self.projection.add(out[current], name, gradient.float())
            self.projection_seconds += time.perf_counter() - started

        with self._receiving(images, receive):
            with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.autocast):
                predicted = self.model.predict_target(noisy, steps, of_copies).float()
            self._check_output(predicted, timesteps, ids)
            weights = self.model.elbo_weights(steps)
            losses = [objective(predicted, target, weights).sum() for objective in self.objectives]
            for current, loss in enumerate(losses):
                last = current + 1 == len(losses)
                (loss / len(self.timesteps)).backward(retain_graph=not last)

    def _receiving(self, images: int, receive: Receiver) -> AbstractContextManager[None]:
        network, names = self.model.network, set(self.parameters)
        if self.batch_size > 1:
            return gradient_of_each_image(network, names, images, receive)
        return gradient_of_the_batch(network, names, receive)

    def _check_output(self, predicted: Tensor, timesteps: Tensor, ids: Sequence[Id]) -> None:
        bad = ~predicted.detach().isfinite().flatten(1).all(1)
        if bad.any():
            image, copy = divmod(int(bad.nonzero()[0]), len(timesteps))
            raise NotFiniteError(
                f"the model's output is not finite for image {ids[image]} at timestep {int(timesteps[copy])}"
            )

    def _find_timestep(self, clean: Tensor, noises: Tensor, image: Id, condition: Condition) -> None:
        """Name the copy of one image whose gradient is not finite."""
        for index, timestep in enumerate(self.timesteps.tolist()):
            part = slice(index, index + 1)
            out = torch.zeros(len(self.objectives), 1, self.projection.dim, device=clean.device)
            self._add_pass(out, clean[:, part], noises[:, part], self.timesteps[part], [image], condition)
            if not out.isfinite().all():
                raise NotFiniteError(f"the gradient of image {image} is not finite at timestep {timestep}")
        raise NotFiniteError(f"the gradient of image {image} overflows when its timesteps are added")
