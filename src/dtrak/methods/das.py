"""The Diffusion Attribution Score (Lin et al., 2024): how far the prediction moves if an image is left out, squared.

The regression of outputs y_n on features φ_n, with damping λ, has residuals r_n. Without image n, the query's output is
less by

    φ(x)ᵀ (ΦᵀΦ + λI)⁻¹ φ_n · r_n / (1 − h_n),        h_n = φ_nᵀ (ΦᵀΦ + λI)⁻¹ φ_n, the leverage of image n

This is exact; no regression is computed again. Each noised copy has its own kernel, of gradients of the mean output.
"""

import numpy as np

from dtrak.contracts import KernelInput, Values
from dtrak.methods.method import Gradients, Method, Ridge, kernel_scores

LEAST = 1e-6  # the least 1 − h_n; rounding errors can make it zero if λ is tiny


def changes_without_image(vectors: KernelInput, damping: float) -> Values:
    """φ(x)ᵀ (ΦᵀΦ + λI)⁻¹ φ_n · r_n / (1 − h_n)."""
    assert vectors.residuals is not None
    left = np.clip(1 - vectors.kernel.squares(damping, 1, vectors.train), LEAST, None)
    changes = kernel_scores(vectors, damping) * (vectors.residuals[vectors.train] / left)
    return changes.astype(np.float32)


def squared_changes(vectors: KernelInput, damping: float) -> Values:
    """τ(x)_n = the square of the change without image n."""
    return np.square(changes_without_image(vectors, damping))


DAS = Method(
    "das",
    "how far the prediction for the query moves if the image is left out, squared (Diffusion Attribution Score)",
    Gradients(("avg",), copies="apart", timesteps="visible", projection="factored"),
    squared_changes,
    Ridge("rows", pooled=False, residuals=True),
    linear=False,
)
