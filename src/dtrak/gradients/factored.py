"""The factored projection computes p² numbers of a weight's gradient without the gradient itself.

It needs only the layer's input a and the gradient g of its output. The gradient of a weight W [out, in] is the sum of
g aᵀ over positions. With random matrices A [p, in] and B [p, out], which are the same for all images,

    B ∇W Aᵀ = Σ_positions (B g)(A a)ᵀ        p² numbers

A and B have orthogonal rows, scaled so that E[AᵀA] = I and E[BᵀB] = I. So inner products are kept on average; they are
kept exactly if p is as large as both sides of W. For a convolution, A a is a convolution with p filters. Each filter is
the product of a vector over channels and a vector over places, which takes a ninth of the work if filters are 3 × 3.
Only a forward pass and a backward pass to the activations are needed, and every copy in a batch gets its own numbers.

Vectors (biases, scales of norms) have few numbers. They are kept as they are if they fit, and sketched together if not.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtrak.errors import UsageError
from dtrak.gradients.layers import has_matrix
from dtrak.gradients.projections import Identity, Shapes, Sketch, sizes_of
from dtrak.noise import stream

SHARE_OF_VECTORS = 1 / 8  # the largest share of the k numbers that vectors get


class Factored:
    """The projection keeps about p² numbers of each matrix, with the largest p for which all fit into `dim`.

    `self.dim` is how many numbers there are; it can be less than `dim`.
    """

    has_shortcuts = True

    def __init__(self, dim: int, shapes: Shapes, seed: int) -> None:
        matrices = {name: (shape[0], math.prod(shape[1:])) for name, shape in shapes.items() if len(shape) > 1}
        self._channels = {name: shapes[name][1] for name in matrices}
        vectors = {name: shape for name, shape in shapes.items() if len(shape) < 2}
        in_vectors = sum(sizes_of(vectors).values())
        of_vectors = min(in_vectors, max(1, int(dim * SHARE_OF_VECTORS)) if matrices else dim)
        self._seed = seed
        self._sizes = _reduced_shapes(matrices, dim - of_vectors)
        self._full = matrices
        self._factors: dict[str, Factors] = {}
        self._places: dict[str, slice] = {}
        end = 0
        for name, (rows, columns) in self._sizes.items():
            self._places[name] = slice(end, end + rows * columns)
            end += rows * columns
        kind = Identity if in_vectors <= of_vectors else Sketch
        self._vectors = kind(of_vectors, vectors, seed)
        self._place_of_vectors = slice(end, end + of_vectors)
        self.dim = end + of_vectors

    def factors(self, name: str, device: torch.device) -> "Factors":
        """Return A [p, in] and B [p, out] of a matrix."""
        if name not in self._factors:
            (rows, columns), (p, q), channels = self._full[name], self._sizes[name], self._channels[name]
            names, places = (self._seed, "factored", name), None
            if channels < columns and q <= channels:  # rows are products over channels and places
                signs = stream(*names, "places").integers(2, size=(q, columns // channels), dtype="int8") * 2 - 1
                columns, places = channels, torch.from_numpy(signs.astype(np.float32))
            a, b = _orthogonal(q, columns, *names, 1), _orthogonal(p, rows, *names, 0)
            self._factors[name] = Factors(a, places, b)
        found = self._factors[name] = self._factors[name].to(device)
        return found

    def add(self, out: Tensor, name: str, gradient: Tensor) -> None:
        if name not in self._places:
            self._vectors.add(out[:, self._place_of_vectors], name, gradient)
            return
        factors = self.factors(name, gradient.device)
        out[:, self._places[name]] += (factors.b @ gradient.view(-1, *self._full[name]) @ factors.a.T).flatten(1)

    def shortcut(self, name: str, layer: nn.Module, a: Tensor) -> Callable[[Tensor, Tensor], None] | None:
        """Return a function that adds B ∇W Aᵀ of each image. It keeps A a instead of a, and computes B g from g."""
        reduce = REDUCED.get(type(layer))
        if reduce is None or not has_matrix(layer) or name not in self._places:
            return None
        product, place = reduce(layer, a, self.factors(name, a.device)), self._places[name]

        def add(out: Tensor, g: Tensor) -> None:
            out[:, place] += product(g).reshape(len(out), -1, place.stop - place.start).sum(1)

        return add


@dataclass(frozen=True, eq=False)
class Factors:
    """A [p, in] and B [p, out] of a matrix. Rows of A may be products of a vector over channels and one over places."""

    channels: Tensor  # [p, channels]
    places: Tensor | None  # [p, places of a filter]; None if A is `channels` itself
    b: Tensor

    @property
    def a(self) -> Tensor:
        if self.places is None:
            return self.channels
        return (self.channels[:, :, None] * self.places[:, None, :]).flatten(1)

    def to(self, device: torch.device) -> "Factors":
        places = None if self.places is None else self.places.to(device)
        return Factors(self.channels.to(device), places, self.b.to(device))


# The functions in `REDUCED` take a layer, its input a [copies, …] and the factors. Each returns a `Product`, which
# takes g and returns B ∇W Aᵀ [copies, p, p].
Product = Callable[[Tensor], Tensor]


def _linear(layer: nn.Linear, a: Tensor, factors: Factors) -> Product:
    reduced = factors.a @ _positions(a).mT  # [copies, p, positions]: products with long rows are the quick ones
    return lambda g: ((reduced @ _positions(g)) @ factors.b.T).mT


def _conv2d(layer: nn.Conv2d, a: Tensor, factors: Factors) -> Product:
    size = layer.weight.shape[2:]
    if (*size, *layer.stride, *layer.padding) == (1, 1, 1, 1, 0, 0):  # a linear layer at every position
        reduced = factors.a @ a.flatten(2)
        return lambda g: (factors.b @ g.flatten(2)) @ reduced.mT
    if factors.places is None:
        filters, groups = factors.channels.view(-1, layer.in_channels, *size), 1
    else:
        a = (factors.channels @ a.flatten(2)).unflatten(2, a.shape[2:])
        filters, groups = factors.places.view(-1, 1, *size), len(factors.places)
    reduced = F.conv2d(a, filters, None, layer.stride, layer.padding, layer.dilation, groups).flatten(2)
    return lambda g: (factors.b @ g.flatten(2)) @ reduced.mT


def _embedding(layer: nn.Embedding, a: Tensor, factors: Factors) -> Product:
    reduced = _positions(factors.b.T[a])  # an input is an index, which selects a column of B
    return lambda g: reduced.transpose(1, 2) @ _positions(g @ factors.a.T)


def _positions(values: Tensor) -> Tensor:
    """Return values [copies, …, p] as [copies, positions, p]."""
    return values.reshape(len(values), -1, values.shape[-1])


REDUCED: dict[type[nn.Module], Callable[[Any, Tensor, Factors], Product]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.Embedding: _embedding,
}


def _reduced_shapes(matrices: Mapping[str, tuple[int, int]], numbers: int) -> dict[str, tuple[int, int]]:
    """Return the reduced shape of each matrix: [p, p] or [p, p + 1], the largest with which all fit into `numbers`.

    No side is longer than that of the matrix itself.
    """

    def reduced(step: int) -> dict[str, tuple[int, int]]:
        p, q = step // 2, (step + 1) // 2
        return {name: (min(p, rows), min(q, columns)) for name, (rows, columns) in matrices.items()}

    largest = max((max(shape) for shape in matrices.values()), default=0)
    steps = range(2, 2 * largest + 1)
    fitting = bisect_right(steps, numbers, key=lambda step: sum(p * q for p, q in reduced(step).values()))
    if matrices and not fitting:
        raise UsageError(
            f"projection-dim: the projection factored needs a number for each of {len(matrices):,} matrices at least, "
            f"but has only {numbers:,}; give a larger one, or --projection sketch"
        )
    return reduced(steps[fitting - 1]) if matrices else {}


def _orthogonal(p: int, n: int, *names: int | str) -> Tensor:
    """Return p ≤ n orthogonal rows A of n numbers, scaled so that E[AᵀA] = I."""
    rows = np.linalg.qr(stream(*names).standard_normal((n, p)))[0].T
    return torch.from_numpy((rows * math.sqrt(n / p)).astype(np.float32))
