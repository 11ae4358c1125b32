"""The directions of the Gauss–Newton matrix, layer by layer, from its Kronecker factors (EK-FAC).

The Gauss–Newton matrix of the training loss is E[∇ℓ ∇ℓᵀ] for ℓ = √(2/D) v·ε_θ, where v ~ N(0, I) has the D numbers of
the output (`probed`). For a layer with weight W [out, in], ∇_W ℓ is the sum of g aᵀ over positions. If g and a
were independent, the layer's block would be E[g gᵀ] ⊗ E[a aᵀ], and its eigenvectors the products of those of the
factors, U [out, out] and V [in, in]. The eigenvalues need not be approximated so:

    s_ij = E[(Uᵀ ∇_W ℓ V)_ij²]

A bias is one more column of W, with an input of 1. Blocks are linear layers and convolutions. All other parameters have
their own axes as directions.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtrak.gradients.layers import has_matrix, owners
from dtrak.gradients.projections import Shapes, sizes_of


def probed(predicted: Tensor, probes: Tensor, elbo_weights: Tensor) -> Tensor:
    """Return √(2/D) v·ε_θ, an objective that takes probes v in the place of ε."""
    return math.sqrt(2 / predicted[0].numel()) * (probes * predicted).flatten(1).sum(1)


@dataclass(frozen=True, eq=False)
class Block:
    """A layer's weight, and its bias if it has one, as a matrix [out, in] in a gradient of d numbers."""

    weight: slice
    bias: slice | None
    left: Tensor  # U [out, out]
    right: Tensor  # V [in, in]; the last row is for the bias

    def rotate(self, gradients: Tensor, back: bool = False) -> None:
        """Replace ∇W in gradients [B, d] with Uᵀ ∇W V, or with U ∇W Vᵀ to rotate `back`."""
        weight = gradients[:, self.weight].unflatten(1, (len(self.left), -1))
        matrix = weight if self.bias is None else torch.cat([weight, gradients[:, self.bias, None]], 2)
        found = self.left @ matrix @ self.right.T if back else self.left.T @ matrix @ self.right
        gradients[:, self.weight] = found[:, :, : weight.shape[2]].flatten(1)
        if self.bias is not None:
            gradients[:, self.bias] = found[:, :, -1]


@dataclass(frozen=True, eq=False)
class Directions:
    """The directions of all layers, and the eigenvalues s [d] in these directions."""

    blocks: Sequence[Block]
    eigenvalues: Tensor

    def rotated(self, gradients: Tensor) -> Tensor:
        """Return gradients [B, d] in the coordinates of the directions; numbers in no block stay as they are."""
        found = gradients.clone()
        for block in self.blocks:
            block.rotate(found)
        return found

    def rotated_back(self, coordinates: Tensor) -> Tensor:
        """Return the gradients [B, d] that have these coordinates."""
        found = coordinates.clone()
        for block in self.blocks:
            block.rotate(found, back=True)
        return found


class Covariances:
    """Not a projection: it adds up a aᵀ and g gᵀ of all linear layers and convolutions in the place of features."""

    has_shortcuts = True
    dim = 1

    def __init__(self, network: nn.Module, shapes: Shapes) -> None:
        self._shapes = shapes
        weights = {
            f"{path}.weight" if path else "weight": layer for path, layer in owners(network, set(shapes)).items()
        }
        self._known = {name for name, one in weights.items() if type(one) in INPUT_ROWS and has_matrix(one)}
        self.totals: dict[str, Tensor] = {}  # Σ a aᵀ and Σ g gᵀ, float64, under "a" or "g" and the weight's name

    def add(self, out: Tensor, name: str, gradient: Tensor) -> None:
        """Gradients are not needed."""

    def shortcut(self, name: str, layer: nn.Module, a: Tensor) -> Callable[[Tensor, Tensor], None]:
        if name not in self._known:
            return lambda out, g: None
        rows = INPUT_ROWS[type(layer)](layer, a)
        self._add(f"a {name}", F.pad(rows, (0, 1), value=1) if _bias_of(name) in self._shapes else rows)
        axis = 1 if isinstance(layer, nn.Conv2d) else -1  # of the outputs
        return lambda out, g: self._add(f"g {name}", g.movedim(axis, -1).reshape(-1, g.shape[axis]))

    def _add(self, name: str, rows: Tensor) -> None:
        self.totals[name] = self.totals.get(name, 0) + (rows.T @ rows).double().cpu()

    def blocks(self) -> list[Block]:
        """Return the blocks of all layers that were seen, with the eigenvectors of their covariances."""
        places, end = dict[str, slice](), 0
        for name, size in sizes_of(self._shapes).items():
            places[name], end = slice(end, end + size), end + size
        seen = [name for name in self._shapes if f"g {name}" in self.totals]
        factors = [[torch.linalg.eigh(self.totals[f"{side} {name}"])[1].float() for side in "ga"] for name in seen]
        return [Block(places[name], places.get(_bias_of(name)), *two) for name, two in zip(seen, factors, strict=True)]


def _bias_of(weight: str) -> str:
    return f"{weight.removesuffix('weight')}bias"


def _of_convolution(layer: nn.Conv2d, a: Tensor) -> Tensor:
    """Return the patch of the input at every position, [copies · positions, channels · places of a filter]."""
    size, dilation = layer.kernel_size, layer.dilation
    assert not isinstance(layer.padding, str)  # as for all layers that are known
    unfolded = F.unfold(a, size, dilation, layer.padding, layer.stride)
    return unfolded.transpose(1, 2).flatten(0, 1)


INPUT_ROWS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Linear: lambda layer, a: a.reshape(-1, a.shape[-1]),
    nn.Conv2d: _of_convolution,
}
