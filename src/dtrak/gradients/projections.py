"""From d numbers to k, keeping inner products: E[Pᵀg · Pᵀh] = g·h.

A projection is fed one parameter's gradient at a time and adds its share to the result, so that no gradient has to be
laid out whole. What it does is fixed by its seed and the parameters' names alone.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtrak.noise import stream

Shapes = Mapping[str, tuple[int, ...]]  # of the parameters, by name


class Projection:
    """A linear map from the gradients of all parameters to `dim` numbers."""

    dim: int
    has_shortcuts = False  # whether `shortcut` gives functions

    def add(self, out: Tensor, name: str, gradient: Tensor) -> None:
        """out [B, k] += gradient [B, n] of the parameter `name`, projected. The gradient is used up."""
        raise NotImplementedError

    def shortcut(self, name: str, layer: nn.Module, a: Tensor) -> "AddFromOutput | None":
        """Return a function that projects a parameter's gradient without forming it, from its layer's input a.

        It is called with `out` [B, k], to which it adds, and with the gradient of the layer's output. None if the
        parameter's gradient itself is needed.
        """
        return None


AddFromOutput = Callable[[Tensor, Tensor], None]  # called with `out` and the gradient of a layer's output


class Sketch(Projection):
    """A sparse Johnson–Lindenstrauss transform that only adds runs of memory: O(d) work, no matrix.

    Each parameter is cut into rows of k numbers. A row's entries get random signs, and the row is added to the k
    buckets from a random place on, around the end. Two entries of one row never meet; two of different rows meet with
    probability 1/k; so E[Pᵀg·Pᵀh] = g·h and Var ≤ (‖g‖²‖h‖² + (g·h)²)/k, no more than a count sketch has.
    """

    def __init__(self, dim: int, shapes: Shapes, seed: int) -> None:
        self.dim = dim
        self._signs: dict[str, Tensor] = {}
        self._starts: dict[str, list[int]] = {}
        for name, size in sizes_of(shapes).items():
            random = stream(seed, "sketch", name)
            self._starts[name] = random.integers(dim, size=-(-size // dim)).tolist()
            self._signs[name] = torch.from_numpy(random.integers(2, size=size, dtype="int8") * 2 - 1)

    def add(self, out: Tensor, name: str, gradient: Tensor) -> None:
        signs = self._signs[name] = self._signs[name].to(gradient.device)
        add_rows = add_rows_by_slices if gradient.is_cpu else add_rows_by_index
        add_rows(out, gradient.mul_(signs), self._starts[name])


def add_rows_by_slices(out: Tensor, values: Tensor, starts: list[int]) -> None:
    """Add each row of k numbers of `values` [B, n] to `out` [B, k] from its start on, around the end."""
    images, dim = out.shape
    # numpy, as its slices cost a fifth of torch's; twice as long, so that a row is one slice.
    unrolled, source = np.zeros((images, 2 * dim), dtype=np.float32), values.numpy()
    for index, start in enumerate(starts):
        row = source[:, index * dim : (index + 1) * dim]
        unrolled[:, start : start + row.shape[1]] += row
    out += torch.from_numpy(unrolled[:, :dim] + unrolled[:, dim:])


def add_rows_by_index(out: Tensor, values: Tensor, starts: list[int], rows_at_once: int = 256) -> None:
    """The same in few large operations, as accelerators like it."""
    images, dim = out.shape
    rows = F.pad(values, (0, len(starts) * dim - values.shape[1])).view(images, len(starts), dim)
    places = torch.arange(dim, device=out.device)
    rows_at_once = max(1, rows_at_once // images)
    for part in range(0, len(starts), rows_at_once):
        first = torch.tensor(starts[part : part + rows_at_once], device=out.device)
        index = (places - first[:, None]) % dim  # [rows, k]: which entry of its row a bucket gets
        out += rows[:, part : part + rows_at_once].gather(2, index.expand(images, -1, -1)).sum(1)


class Dense(Projection):
    """A dense random matrix over √k, made block by block from a named stream and never kept: the paper's choice."""

    BLOCK = 1 << 22  # entries of the matrix that exist at one time

    def __init__(self, dim: int, shapes: Shapes, seed: int, entries: str) -> None:
        self.dim = dim
        self._seed = seed
        self._entries = entries

    def add(self, out: Tensor, name: str, gradient: Tensor) -> None:
        rows = max(1, self.BLOCK // self.dim)
        for index, part in enumerate(gradient.split(rows, dim=1)):
            random = stream(self._seed, self._entries, name, index)
            shape = (part.shape[1], self.dim)
            if self._entries == "gaussian":
                matrix = torch.from_numpy(random.standard_normal(shape, dtype="float32"))
            else:
                matrix = torch.from_numpy(random.integers(2, size=shape, dtype="int8")).float() * 2 - 1
            out += part @ (matrix.to(part.device) / self.dim**0.5)


class Identity(Projection):
    """All d numbers as they are: exact kernels for small models."""

    def __init__(self, dim: int, shapes: Shapes, seed: int) -> None:
        sizes = sizes_of(shapes)
        self.dim = sum(sizes.values())
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self._places = {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}

    def add(self, out: Tensor, name: str, gradient: Tensor) -> None:
        out[:, self._places[name]] += gradient


def sizes_of(shapes: Shapes) -> dict[str, int]:
    """How many numbers each parameter has."""
    return {name: math.prod(shape) for name, shape in shapes.items()}
