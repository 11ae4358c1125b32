"""The directions of the Gauss–Newton matrix, layer by layer, from its Kronecker factors (EK-FAC).

The Gauss–Newton matrix of the training loss is E[∇ℓ ∇ℓᵀ] for ℓ = √(2/D) v·ε_θ, where v ~ N(0, I) has the D numbers of
the output (`OutputProbes`). For a layer with weight W [out, in], ∇_W ℓ is the sum of g aᵀ over positions. If g and a
were independent, the layer's block would be E[g gᵀ] ⊗ E[a aᵀ], and its eigenvectors the products of those of the
factors, U [out, out] and V [in, in]. The eigenvalues need not be approximated so:

    s_ij = E[(Uᵀ ∇_W ℓ V)_ij²]

A bias is one more column of W, with an input of 1. Blocks are linear layers and convolutions. All other parameters have
their own axes as directions.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtrak.gradients.layers import is_known, owners
from dtrak.gradients.projections import AddFromOutput, Projection, Shapes, sizes_of
from dtrak.noise import stable_hash


class OutputProbes:
    """The objective ℓ = √(2/D) v·ε_θ, with a new v ~ N(0, I) for every noised copy."""

    def __init__(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(stable_hash(f"{seed} output probes") >> 1)

    def __call__(self, predicted: Tensor, noise: Tensor, elbo_weights: Tensor) -> Tensor:
        v = torch.randn(predicted.shape, generator=self._random).to(predicted.device)
        return math.sqrt(2 / predicted[0].numel()) * (v * predicted).flatten(1).sum(1)


@dataclass(frozen=True, eq=False)
class Block:
    """A layer's weight, and its bias if it has one, as a matrix [out, in] in a gradient of d numbers."""

    weight: slice
    bias: slice | None
    left: Tensor  # U [out, out]
    right: Tensor  # V [in, in]; the last row is for the bias

    def rotated(self, gradients: Tensor) -> Tensor:
        """Return Uᵀ ∇W V of gradients [B, d], [B, out, in]."""
        return self.left.T @ self._matrix(gradients) @ self.right

    def rotate(self, gradients: Tensor) -> None:
        """Replace ∇W in gradients [B, d] with Uᵀ ∇W V."""
        self._put(gradients, self.rotated(gradients))

    def rotate_back(self, gradients: Tensor) -> None:
        """Replace M in gradients [B, d] with U M Vᵀ."""
        self._put(gradients, self.left @ self._matrix(gradients) @ self.right.T)

    def _matrix(self, gradients: Tensor) -> Tensor:
        weight = gradients[:, self.weight].unflatten(1, (len(self.left), -1))
        return weight if self.bias is None else torch.cat([weight, gradients[:, self.bias, None]], 2)

    def _put(self, gradients: Tensor, matrix: Tensor) -> None:
        inputs = matrix.shape[2] - (self.bias is not None)
        gradients[:, self.weight] = matrix[:, :, :inputs].flatten(1)
        if self.bias is not None:
            gradients[:, self.bias] = matrix[:, :, inputs]


@dataclass(frozen=True, eq=False)
class Directions:
    """The directions of all layers, and the eigenvalues s [d] in these directions."""

    blocks: Sequence[Block]
    eigenvalues: Tensor

    def rotated(self, gradients: Tensor) -> Tensor:
        """Return gradients [B, d] in the coordinates of the directions."""
        return rotated(self.blocks, gradients)

    def rotated_back(self, coordinates: Tensor) -> Tensor:
        """Return the gradients [B, d] that have these coordinates."""
        found = coordinates.clone()
        for block in self.blocks:
            block.rotate_back(found)
        return found


def rotated(blocks: Iterable[Block], gradients: Tensor) -> Tensor:
    """Return gradients [B, d] in the directions of blocks; other numbers stay as they are."""
    found = gradients.clone()
    for block in blocks:
        block.rotate(found)
    return found


class Covariances(Projection):
    """Not a projection: it adds up a aᵀ and g gᵀ of all linear layers and convolutions in the place of features."""

    has_shortcuts = True
    dim = 1

    def __init__(self, network: nn.Module, shapes: Shapes) -> None:
        self._shapes = shapes
        self._layers = {
            f"{path}.weight" if path else "weight": layer
            for path, layer in owners(network, set(shapes)).items()
            if type(layer) in INPUT_ROWS and is_known(layer) and getattr(layer, "groups", 1) == 1
        }
        self._of_inputs: dict[str, Tensor] = {}
        self._of_outputs: dict[str, Tensor] = {}

    def add(self, out: Tensor, name: str, gradient: Tensor) -> None:
        """Gradients are not needed."""

    def shortcut(self, name: str, layer: nn.Module, a: Tensor) -> AddFromOutput:
        if name not in self._layers or name not in self._shapes:
            return lambda out, g: None
        rows = INPUT_ROWS[type(layer)](layer, a)
        if self._bias(name) is not None:
            rows = F.pad(rows, (0, 1), value=1)
        _add(self._of_inputs, name, rows)
        axis = 1 if isinstance(layer, nn.Conv2d) else -1  # of the outputs
        return lambda out, g: _add(self._of_outputs, name, g.movedim(axis, -1).reshape(-1, g.shape[axis]))

    def _bias(self, name: str) -> str | None:
        bias = f"{name.removesuffix('weight')}bias"
        return bias if bias in self._shapes else None

    def blocks(self) -> list[Block]:
        """Return the blocks of all layers that were seen, with the eigenvectors of their covariances."""
        places, end = dict[str, slice](), 0
        for name, size in sizes_of(self._shapes).items():
            places[name], end = slice(end, end + size), end + size
        found = []
        for name, of_outputs in self._of_outputs.items():
            bias = self._bias(name)
            left, right = (torch.linalg.eigh(one)[1].float() for one in (of_outputs, self._of_inputs[name]))
            found.append(Block(places[name], None if bias is None else places[bias], left, right))
        return found


def _add(totals: dict[str, Tensor], name: str, rows: Tensor) -> None:
    """Add rowsᵀ rows to a total, in float64."""
    totals[name] = totals.get(name, 0) + (rows.T @ rows).double().cpu()


def _of_linear(layer: nn.Linear, a: Tensor) -> Tensor:
    return a.reshape(-1, a.shape[-1])


def _of_convolution(layer: nn.Conv2d, a: Tensor) -> Tensor:
    """Return the patch of the input at every position, [copies · positions, channels · places of a filter]."""
    size, dilation = layer.kernel_size, layer.dilation
    assert not isinstance(layer.padding, str)  # as for all layers that are known
    unfolded = F.unfold(a, size, dilation, layer.padding, layer.stride)
    return unfolded.transpose(1, 2).flatten(0, 1)


INPUT_ROWS: dict[type[nn.Module], Callable[..., Tensor]] = {nn.Linear: _of_linear, nn.Conv2d: _of_convolution}
