"""Compute features: the projected gradients of an objective, for each noised copy of an image or as their mean.

    φ_c(x) = Pᵀ ∇_θ ℓ(x, t, ε)        of the copy c = (t, ε), with one of K timesteps t and one of Z noises ε
    φ(x) = (1/KZ) Σ_c φ_c(x)          of the image

Hooks on the layers give the gradient of each copy or each image of a batch (`backward.py`), or even its projection
without the gradient (`factored.py`). If hooks fail for a network, a pass holds only one image, or one copy.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dtrak.devices import reproducible, threads_for
from dtrak.errors import DtrakError, UsageError
from dtrak.gradients.activations import activation_bytes
from dtrak.gradients.backward import Receiver, Shortcut, can_share_a_pass, gradient_of_each_image, gradient_of_the_batch
from dtrak.gradients.objectives import Objective, get_objective
from dtrak.gradients.projections import Projection
from dtrak.gradients.sharing import OWN, SHARED, Places, parse_sharing
from dtrak.models import DiffusionModel
from dtrak.models.conditions import Condition, moved, repeated
from dtrak.models.memory import copies_that_fit, recomputes, total_memory
from dtrak.noise import gaussian

Id = str | int

# So many images share a pass that their activations have about this size. Larger passes would hardly be more efficient.
SHARED_PASS_BYTES = 256 << 20
MOST_SHARED_IMAGES = 32


@dataclass(frozen=True)
class Copies:
    """The noised copies that are made of each image: K timesteps with Z noises each."""

    timesteps: tuple[int, ...]
    draws: int = 1  # how many noises there are at each timestep
    noise: str = SHARED  # which images have the same noises: `sharing.py`
    seed: int = 0
    of: str = ""  # a name of the set of images, because two sets can have the same ids

    def pairs(self) -> list[tuple[int, int]]:
        """Return (timestep, draw) of every copy."""
        return [(timestep, draw) for timestep in self.timesteps for draw in range(self.draws)]

    def noises(self, shape: tuple[int, ...], image: Id | None = None, row: int = 0) -> Tensor:
        """Return ε of every copy, [KZ, C, H, W], for an image that has this row in its set.

        It depends on seed, timestep and draw, and on the image or its place if images do not share all noise.
        """
        sharing = parse_sharing(self.noise)
        name: tuple[str, ...] = ()
        if isinstance(sharing, Places):
            name = (f"place {sharing.of(row)}",)
        elif sharing == OWN and image is not None:
            name = (f"image {image} of {self.of}",)
        return torch.stack([gaussian(shape, self.seed, timestep, draw, *name) for timestep, draw in self.pairs()])


class NotFiniteError(DtrakError):
    """A model's output or a gradient is NaN or infinite for an image."""


class Featurizer:
    """A featurizer computes φ of images, for one objective or for several that share the forward pass."""

    def __init__(
        self,
        model: DiffusionModel,
        objectives: Sequence[str | Objective],
        copies: Copies,
        projection: Projection,
        parameters: dict[str, nn.Parameter],
        *,
        condition: Condition | None = None,  # the condition of any one image, to test the network with
        apart: bool = False,  # whether every copy has its own row; if not, an image has one row
        batch_size: int | None = None,  # how many images share a pass; None: it depends on the size of activations
        autocast: bool = False,  # whether forward passes are in bfloat16; gradients are added in float32 even then
    ) -> None:
        self.model = model
        self.objectives = [get_objective(one) if isinstance(one, str) else one for one in objectives]
        self.copies = copies
        self.projection = projection
        self.parameters = parameters
        self.apart = apart
        self.autocast = autocast
        self.timesteps = torch.tensor([timestep for timestep, _ in copies.pairs()], device=model.device)
        self._shared_noise = copies.noises(model.shape) if copies.noise == SHARED else None
        per_copy = activation_bytes(model, condition)
        if recomputes(model, per_copy, total_memory(model.device)):
            per_copy = activation_bytes(model, condition)
        self.copies_at_once = copies_that_fit(per_copy, total_memory(model.device))
        self.batch_size = self._choose_batch_size(per_copy, batch_size)
        self.follows_layers = self.batch_size > 1 or apart or projection.has_shortcuts
        if self.follows_layers and not can_share_a_pass(model, set(parameters), condition):
            self._take_one_at_a_time(batch_size)
        self.projection_seconds = 0.0
        self.pass_bytes = per_copy * min(self.copies_at_once, self.batch_size * len(self.timesteps))

    def _choose_batch_size(self, bytes_per_copy: int, wanted: int | None) -> int:
        largest = 0 if self.projection.has_shortcuts else 4 * max(value.numel() for value in self.parameters.values())
        fitting = SHARED_PASS_BYTES // (bytes_per_copy * len(self.timesteps) + largest)
        return wanted or max(1, min(fitting, MOST_SHARED_IMAGES))

    def _take_one_at_a_time(self, wanted: int | None) -> None:
        """Put only one image, or one copy, in each pass, because hooks fail for this network."""
        if wanted is not None and wanted > 1:
            raise UsageError(f"batch-size {wanted}: the images of this network cannot share a pass; give 1")
        self.follows_layers, self.batch_size = False, 1
        if self.apart:
            self.copies_at_once = 1

    @property
    def rows(self) -> int:
        """Return how many rows an image has: one for each copy if copies are apart, and one if not."""
        return len(self.timesteps) if self.apart else 1

    def __call__(
        self, clean: Tensor, ids: Sequence[Id], condition: Condition | None = None, numbers: Sequence[int] | None = None
    ) -> Tensor:
        """Return φ of the images `clean` [B, C, H, W], float32 on the CPU: [objectives, B, k].

        If copies are apart, φ is [objectives, B, KZ, k]. `clean` can also be [B, K, C, H, W], with one image for every
        timestep. `condition` holds the conditions of the images; each of its tensors is [B, …]. `numbers` are the rows
        of the images in their set, for noise by place; None means the first ones.
        """
        numbers = range(len(clean)) if numbers is None else numbers
        moved_condition = moved(condition or {}, self.model.device)
        out = torch.zeros(len(self.objectives), len(clean), self.rows, self.projection.dim, device=self.model.device)
        size = _equal_parts(len(clean), self.batch_size)
        with threads_for(self.pass_bytes), reproducible():
            for start in range(0, len(clean), size):
                rows = slice(start, start + size)
                own = {name: value[rows] for name, value in moved_condition.items()}
                self._add_images(out[:, rows], clean[rows].to(self.model.device), ids[rows], numbers[rows], own)
        return out.cpu() if self.apart else out[:, :, 0].cpu()

    def _add_images(
        self, out: Tensor, clean: Tensor, ids: Sequence[Id], numbers: Sequence[int], condition: Condition
    ) -> None:
        """Add the features of b images that share their passes to `out` [objectives, b, rows, k]."""
        noises = torch.stack([self._noise_of(*one) for one in zip(ids, numbers, strict=True)])
        noises = noises.to(clean.device)  # [b, KZ, C, H, W]
        if clean.dim() < noises.dim():
            clean = clean[:, None].expand_as(noises)
        else:
            clean = clean.repeat_interleave(self.copies.draws, 1)
        step = max(1, self.copies_at_once // len(clean))
        for start in range(0, len(self.timesteps), step):
            part = slice(start, start + step)
            rows = out[:, :, part] if self.apart else out
            self._add_pass(rows, clean[:, part], noises[:, part], self.timesteps[part], ids, condition)
        finite = out.isfinite().all(3).all(2).all(0)
        if not finite.all():
            bad = int((~finite).nonzero()[0])
            own = {name: value[bad : bad + 1] for name, value in condition.items()}
            self._find_timestep(clean[bad : bad + 1], noises[bad : bad + 1], ids[bad], own)

    def _noise_of(self, image: Id, row: int) -> Tensor:
        if self._shared_noise is not None:
            return self._shared_noise
        return self.copies.noises(self.model.shape, image, row)

    def _add_pass(
        self, out: Tensor, clean: Tensor, noises: Tensor, timesteps: Tensor, ids: Sequence[Id], condition: Condition
    ) -> None:
        """Run a forward pass on c copies of each of b images, and a backward pass for each objective.

        The features are added to `out` [objectives, b, c or 1, k]. `clean` and `noises` are [b, c, C, H, W], and the
        tensors of `condition` are [b, …].
        """
        noise = noises.flatten(0, 1)  # [b·c, C, H, W]; the copies of one image are side by side
        steps = timesteps.repeat(len(noises))
        flat = clean.flatten(0, 1)
        noisy, target = (mix(flat, noise, steps) for mix in (self.model.add_noise, self.model.target))
        of_copies = repeated(condition, len(timesteps))
        rows = torch.zeros_like(out).flatten(1, 2)  # [objectives, b·c or b, k]
        current = 0  # the index of the objective whose backward pass is running

        def receive(name: str, gradient: Tensor) -> None:
            started = time.perf_counter()
            self.projection.add(rows[current], name, gradient.float())
            self.projection_seconds += time.perf_counter() - started

        def shortcut(name: str, layer: nn.Module, a: Tensor) -> Callable[[Tensor], None] | None:
            add = self.projection.shortcut(name, layer, a)
            return None if add is None else lambda g: add(rows[current], g)

        with self._receiving(rows.shape[1], receive, shortcut):
            with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.autocast):
                predicted = self.model.predict_target(noisy, steps, of_copies).float()
            self._check_output(predicted, timesteps, ids)
            weights = self.model.elbo_weights(steps)
            losses = [objective(predicted, target, weights).sum() for objective in self.objectives]
            for current, loss in enumerate(losses):
                last = current + 1 == len(losses)
                (loss if self.apart else loss / len(self.timesteps)).backward(retain_graph=not last)
        out += rows.unflatten(1, out.shape[1:3])

    def _receiving(self, rows: int, receive: Receiver, shortcut: Shortcut) -> AbstractContextManager[None]:
        network, names = self.model.network, set(self.parameters)
        if self.follows_layers:
            return gradient_of_each_image(network, names, rows, receive, shortcut)
        return gradient_of_the_batch(network, names, receive)

    def _check_output(self, predicted: Tensor, timesteps: Tensor, ids: Sequence[Id]) -> None:
        bad = ~predicted.detach().isfinite().flatten(1).all(1)
        if bad.any():
            image, copy = divmod(int(bad.nonzero()[0]), len(timesteps))
            raise NotFiniteError(
                f"the model's output is not finite for image {ids[image]} at timestep {int(timesteps[copy])}"
            )

    def _find_timestep(self, clean: Tensor, noises: Tensor, image: Id, condition: Condition) -> None:
        """Raise an error that names the timestep at which the gradient of one image is not finite."""
        for index, timestep in enumerate(self.timesteps.tolist()):
            part = slice(index, index + 1)
            out = torch.zeros(len(self.objectives), 1, 1, self.projection.dim, device=clean.device)
            self._add_pass(out, clean[:, part], noises[:, part], self.timesteps[part], [image], condition)
            if not out.isfinite().all():
                raise NotFiniteError(f"the gradient of image {image} is not finite at timestep {timestep}")
        raise NotFiniteError(f"the gradient of image {image} overflows when its timesteps are added")


def _equal_parts(count: int, most: int) -> int:
    """Return the size of about equal parts, none larger than `most`: a small rest would be slow for its size."""
    return -(-count // -(-count // most)) if count else 1
