"""Projections reduce d numbers to k and keep inner products on average: E[Pᵀg · Pᵀh] = g·h.

A projection takes the gradient of one parameter at a time and adds its part to the result, so that the whole gradient
is never in memory. A projection depends only on its seed, on k, and on the names and shapes of the parameters. To add
one, write a class, and add a line to `PROJECTIONS`.
"""

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtrak.contracts import Projection
from dtrak.noise import gaussian, stream
from dtrak.registry import Registry

Shapes = Mapping[str, tuple[int, ...]]  # the shapes of the parameters, by name


class WithoutShortcuts:
    """The part of a projection that always needs the gradients themselves."""

    has_shortcuts = False

    def shortcut(self, name: str, layer: nn.Module, a: Tensor) -> None:
        return None


class Sketch(WithoutShortcuts):
    """A sparse Johnson–Lindenstrauss transform that needs no matrix: it adds slices of memory, with O(d) work.

    The numbers of each parameter are cut into rows of k. The entries of a row get random signs, and the row is added to
    the k buckets, shifted by a random number of places; what passes the last bucket goes on at the first. Two entries
    of the same row are never in the same bucket; two entries of different rows meet with probability 1/k. So
    E[Pᵀg·Pᵀh] = g·h and Var ≤ (‖g‖²‖h‖² + (g·h)²)/k, which is no more than the variance of a count sketch.
    """

    def __init__(self, dim: int, shapes: Shapes, seed: int) -> None:
        self.dim = dim
        self._seed = seed
        self._signs: dict[str, Tensor] = {}
        self._starts: dict[str, list[int]] = {}

    def add(self, out: Tensor, name: str, gradient: Tensor) -> None:
        if name not in self._signs:
            random, size = stream(self._seed, "sketch", name), gradient.shape[1]
            self._starts[name] = random.integers(self.dim, size=-(-size // self.dim)).tolist()
            self._signs[name] = torch.from_numpy(random.integers(2, size=size, dtype="int8") * 2 - 1)
        signs = self._signs[name] = self._signs[name].to(gradient.device)
        add_rows = add_rows_by_slices if gradient.is_cpu else add_rows_by_index
        add_rows(out, gradient.mul_(signs), self._starts[name])


def add_rows_by_slices(out: Tensor, values: Tensor, starts: list[int]) -> None:
    """Add each row of k numbers of `values` [B, n] to `out` [B, k], shifted around by its start."""
    dim = out.shape[1]
    buckets, source = out.numpy(), values.numpy()  # slices in numpy take a fifth of the time of those in torch
    for index, start in enumerate(starts):
        row = source[:, index * dim : (index + 1) * dim]
        before_end = min(dim - start, row.shape[1])
        buckets[:, start : start + before_end] += row[:, :before_end]
        buckets[:, : row.shape[1] - before_end] += row[:, before_end:]


def add_rows_by_index(out: Tensor, values: Tensor, starts: list[int], rows_at_once: int = 256) -> None:
    """Do the same as `add_rows_by_slices` in few large operations, which is faster on accelerators."""
    images, dim = out.shape
    rows = F.pad(values, (0, len(starts) * dim - values.shape[1])).view(images, len(starts), dim)
    places = torch.arange(dim, device=out.device)
    rows_at_once = max(1, rows_at_once // images)
    for part in range(0, len(starts), rows_at_once):
        first = torch.tensor(starts[part : part + rows_at_once], device=out.device)
        index = (places - first[:, None]) % dim  # [rows, k]: the entry of the row that each bucket gets
        out += rows[:, part : part + rows_at_once].gather(2, index.expand(images, -1, -1)).sum(1)


class Dense(WithoutShortcuts):
    """A dense Gaussian matrix, divided by √k, as in the paper. Its blocks are drawn when they are used, not kept."""

    BLOCK = 1 << 22  # how many entries of the matrix are in memory at a time

    def __init__(self, dim: int, shapes: Shapes, seed: int) -> None:
        self.dim = dim
        self._seed = seed

    def add(self, out: Tensor, name: str, gradient: Tensor) -> None:
        rows = max(1, self.BLOCK // self.dim)
        for index, part in enumerate(gradient.split(rows, dim=1)):
            matrix = gaussian((part.shape[1], self.dim), self._seed, "gaussian", name, index)
            out += part @ (matrix.to(part.device) / self.dim**0.5)


class Identity(WithoutShortcuts):
    """The identity keeps all d numbers as they are. It gives exact kernels for small models."""

    def __init__(self, dim: int, shapes: Shapes, seed: int) -> None:
        sizes = sizes_of(shapes)
        self.dim = sum(sizes.values())
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self._places = {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}

    def add(self, out: Tensor, name: str, gradient: Tensor) -> None:
        out[:, self._places[name]] += gradient


MakeProjection = Callable[[int, Shapes, int], Projection]  # from k, the shapes of the parameters by name, and a seed
PROJECTIONS: Registry[MakeProjection] = Registry(
    "projection",
    "dtrak.projections",
    {"sketch": Sketch, "factored": "dtrak.gradients.factored:Factored", "dense": Dense, "identity": Identity},
)


def make_projection(kind: str | MakeProjection, dim: int, shapes: Shapes, seed: int) -> Projection:
    """Return a projection of this kind to at most `dim` numbers; only `identity` ignores `dim` and keeps all."""
    return (PROJECTIONS.choose(kind) if isinstance(kind, str) else kind)(dim, shapes, seed)


def sizes_of(shapes: Shapes) -> dict[str, int]:
    """Return how many numbers each parameter has."""
    return {name: math.prod(shape) for name, shape in shapes.items()}
