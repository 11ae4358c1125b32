"""TRAK and D-TRAK: τ(x) = φ(x)ᵀ (ΦᵀΦ + λI)⁻¹ Φᵀ, with the gradients of L_Simple or of another function as φ."""

import numpy as np
from numpy.typing import NDArray

from dtrak.kernels import Kernel
from dtrak.methods.method import Method


def kernel_scores(kernel: Kernel, queries: NDArray[np.float32], damping: float) -> NDArray[np.float32]:
    """φ(x)ᵀ (ΦᵀΦ + λI)⁻¹ Φᵀ for query features [Q, k] and absolute λ: [Q, N]."""
    return kernel.scores(kernel.coordinates(queries), damping)


TRAK = Method(
    name="trak",
    summary="kernel of the gradients of the training loss, L_Simple",
    needs="the model",
    cost="K forward and backward passes per image",
    objective="simple",
    any_objective=False,
    score=kernel_scores,
)

D_TRAK = Method(
    name="d-trak",
    summary="the same kernel with the gradients of L_Square, or of any other objective",
    needs="the model",
    cost="K forward and backward passes per image",
    objective="square",
    any_objective=True,
    score=kernel_scores,
)
