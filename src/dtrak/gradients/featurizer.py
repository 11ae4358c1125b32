"""Compute features: the projected gradients of an objective, for each noised copy of an image or as their mean.

    φ_c(x) = Pᵀ ∇_θ ℓ(x, t, ε)        of the copy c = (t, ε), with one of K timesteps t and one of Z noises ε
    φ(x) = (1/KZ) Σ_c φ_c(x)          of the image

Hooks on the layers give the gradient of each copy or each image of a batch (`backward.py`), or even its projection
without the gradient (`factored.py`). If hooks fail for a network, a pass holds only one image, or one copy.
"""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dtrak.contracts import Objective, Projection
from dtrak.devices import reproducible, threads_for, total_memory
from dtrak.errors import DtrakError, UsageError
from dtrak.gradients.backward import can_share_a_pass, gradient_of_each_image, gradient_of_the_batch
from dtrak.gradients.copies import Copies
from dtrak.models import DiffusionModel
from dtrak.models.conditions import Condition, moved, repeated
from dtrak.models.memory import copies_that_fit, kept_bytes, one_image, recomputes

Id = str | int

# So many images share a pass that their activations have about this size. Larger passes would hardly be more efficient.
SHARED_PASS_BYTES = 256 << 20
MOST_SHARED_IMAGES = 32


class NotFiniteError(DtrakError):
    """A model's output or a gradient is NaN or infinite for an image."""


def activation_bytes(model: DiffusionModel, condition: Condition | None = None) -> int:
    """Return how many bytes autograd keeps for one copy, for gradients of the model's trained parameters.

    `condition` holds the condition of one image; each of its tensors is [1, …].
    """
    image = one_image(model, condition or {})
    with gradient_of_the_batch(model.network, set(model.parameters()), lambda name, gradient: None):
        return kept_bytes(model.network, lambda: model.predict_target(*image))


class Featurizer:
    """A featurizer computes φ of images, for one objective or for several that share the forward pass."""

    def __init__(
        self,
        model: DiffusionModel,
        objectives: Sequence[Objective],
        copies: Copies,
        projection: Projection,
        parameters: dict[str, nn.Parameter],
        *,
        condition: Condition | None = None,  # the condition of any one image, to test the network with
        apart: bool = False,  # whether every copy has its own row; if not, an image has one row
        batch_size: int | None = None,  # how many images share a pass; None: it depends on the size of activations
        autocast: bool = False,  # whether forward passes are in bfloat16; gradients are added in float32 even then
        probed: bool = False,  # whether objectives get probes of the copies in the place of ε
    ) -> None:
        self.model = model
        self.objectives = objectives
        self.copies = copies
        self.projection = projection
        self.parameters = parameters
        self.apart = apart
        self.autocast = autocast
        self.probed = probed
        self.projection_seconds = 0.0
        self.timesteps = torch.tensor([timestep for timestep, _ in copies.pairs()], device=model.device)
        self.rows = len(self.timesteps) if apart else 1  # of an image
        self._shared_noise = copies.noises(model.shape) if copies.noise == "shared" else None

        memory, per_copy = total_memory(model.device), activation_bytes(model, condition)
        if recomputes(model, per_copy, memory):
            per_copy = activation_bytes(model, condition)
        self.copies_at_once = copies_that_fit(per_copy, memory)
        gradient = 0 if projection.has_shortcuts else 4 * max(value.numel() for value in parameters.values())
        fitting = SHARED_PASS_BYTES // (per_copy * len(self.timesteps) + gradient)
        self.batch_size = batch_size or max(1, min(fitting, MOST_SHARED_IMAGES))
        self.follows_layers = self.batch_size > 1 or apart or projection.has_shortcuts
        if self.follows_layers and not can_share_a_pass(model, set(parameters), condition):
            if batch_size is not None and batch_size > 1:
                raise UsageError(f"batch-size {batch_size}: the images of this network cannot share a pass; give 1")
            self.follows_layers, self.batch_size = False, 1
            self.copies_at_once = 1 if apart else self.copies_at_once
        self.pass_bytes = per_copy * min(self.copies_at_once, self.batch_size * len(self.timesteps))

    def __call__(
        self, clean: Tensor, ids: Sequence[Id], condition: Condition | None = None, names: Sequence[Id] | None = None
    ) -> Tensor:
        """Return φ of the images `clean` [B, C, H, W], float32 on the CPU: [objectives, B, k].

        If copies are apart, φ is [objectives, B, KZ, k]. `clean` can also be [B, K, C, H, W], with one image for every
        timestep. `condition` holds the conditions of the images; each of its tensors is [B, …]. `names` [B] name noise
        and probes of an image's own; None means the ids.
        """
        names = ids if names is None else names
        own = moved(condition or {}, self.model.device)
        out = torch.zeros(len(self.objectives), len(clean), self.rows, self.projection.dim, device=self.model.device)
        passes = max(1, -(-len(clean) // self.batch_size))
        size = max(1, -(-len(clean) // passes))  # about equal parts: a small rest would be slow for its size
        with threads_for(self.pass_bytes), reproducible():
            for start in range(0, len(clean), size):
                part = slice(start, start + size)
                of_part = {name: value[part] for name, value in own.items()}
                x = clean[part].to(self.model.device)
                self._add_images(out[:, part], x, ids[part], of_part, names[part])
        return out.cpu() if self.apart else out[:, :, 0].cpu()

    def _add_images(
        self, out: Tensor, clean: Tensor, ids: Sequence[Id], condition: Condition, names: Sequence[Id]
    ) -> None:
        """Add the features of b images that share their passes to `out` [objectives, b, rows, k]."""
        shared, shape = self._shared_noise, self.model.shape
        noises = torch.stack([self.copies.noises(shape, one) if shared is None else shared for one in names])
        noises = noises.to(clean.device)  # [b, KZ, C, H, W]
        probes = None
        if self.probed:
            probes = torch.stack([self.copies.probes(shape, one) for one in names]).to(clean.device)
        clean = clean.repeat_interleave(self.copies.draws, 1) if clean.dim() == 5 else clean[:, None].expand_as(noises)
        step = max(1, self.copies_at_once // len(clean))
        for start in range(0, len(self.timesteps), step):
            part = slice(start, start + step)
            rows = out[:, :, part] if self.apart else out
            own = None if probes is None else probes[:, part]
            self._add_pass(rows, clean[:, part], noises[:, part], own, self.timesteps[part], ids, condition)
        finite = out.isfinite().all(3).all(2).all(0)
        if finite.all():
            return
        bad = int((~finite).nonzero()[0])
        of_bad = {name: value[bad : bad + 1] for name, value in condition.items()}
        for index, timestep in enumerate(self.timesteps.tolist()):
            image, copy = slice(bad, bad + 1), slice(index, index + 1)
            of_copy = torch.zeros_like(out[:, image, :1])
            own = None if probes is None else probes[image, copy]
            one = clean[image, copy], noises[image, copy], own, self.timesteps[copy], [ids[bad]], of_bad
            self._add_pass(of_copy, *one)
            if not of_copy.isfinite().all():
                raise NotFiniteError(f"the gradient of image {ids[bad]} is not finite at timestep {timestep}")
        raise NotFiniteError(f"the gradient of image {ids[bad]} overflows when its timesteps are added")

    def _add_pass(
        self,
        out: Tensor,
        clean: Tensor,
        noises: Tensor,
        probes: Tensor | None,
        timesteps: Tensor,
        ids: Sequence[Id],
        condition: Condition,
    ) -> None:
        """Run a forward pass on c copies of each of b images, and a backward pass for each objective.

        The features are added to `out` [objectives, b, c or 1, k]. `clean`, `noises` and `probes` are [b, c, C, H, W],
        and the tensors of `condition` are [b, …].
        """
        noise = noises.flatten(0, 1)  # [b·c, C, H, W]; the copies of one image are side by side
        steps = timesteps.repeat(len(noises))
        flat = clean.flatten(0, 1)
        noisy = self.model.process.add_noise(flat, noise, steps)
        target = self.model.process.target(flat, noise, steps) if probes is None else probes.flatten(0, 1)
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

        network, names = self.model.network, set(self.parameters)
        if self.follows_layers:
            receiving = gradient_of_each_image(network, names, rows.shape[1], receive, shortcut)
        else:
            receiving = gradient_of_the_batch(network, names, receive)
        with receiving:
            with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.autocast):
                predicted = self.model.predict_target(noisy, steps, of_copies).float()
            bad = ~predicted.detach().isfinite().flatten(1).all(1)
            if bad.any():
                image, copy = divmod(int(bad.nonzero()[0]), len(timesteps))
                where = f"image {ids[image]} at timestep {int(timesteps[copy])}"
                raise NotFiniteError(f"the model's output is not finite for {where}")
            weights = self.model.process.elbo_weights(steps)
            losses = [objective(predicted, target, weights).sum() for objective in self.objectives]
            for current, loss in enumerate(losses):
                last = current + 1 == len(losses)
                (loss if self.apart else loss / len(self.timesteps)).backward(retain_graph=not last)
        out += rows.unflatten(1, out.shape[1:3])
