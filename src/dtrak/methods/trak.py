"""TRAK: the kernel of the gradients of the training loss (Park et al., 2023), and what divides its scores.

    τ(x)_n = φ(x)ᵀ (ΦᵀΦ + λI)⁻¹ φ_n,        φ = the mean gradient over timesteps and noises, Φ [N, k] of all images

Journey-TRAK takes the query's gradients along its sampling trajectory. Ensembles average over retrained models.
"""

from dataclasses import replace

import numpy as np

from dtrak.contracts import Array, KernelInput, Values
from dtrak.methods.method import Gradients, Method, Ridge, kernel_scores


def relative_scores(vectors: KernelInput, damping: float) -> Values:
    """τ(x)_n / ‖(ΦᵀΦ + λI)⁻¹ φ_n‖."""
    return _over(vectors.kernel.squares(damping, 2, vectors.train), kernel_scores(vectors, damping))


def renormalized_scores(vectors: KernelInput, damping: float) -> Values:
    """τ(x)_n / ‖φ_n‖."""
    return _over(vectors.kernel.squares(damping, 0, vectors.train), kernel_scores(vectors, damping))


def _over(squares: Array, scores: Values) -> Values:
    """Divide scores [Q, N] by the roots of squares [N]; an image that was left out has 0, and the score 0."""
    norms = np.sqrt(squares)
    return np.divide(scores, norms, out=np.zeros_like(scores), where=norms > 0, dtype=np.float64, casting="same_kind")


TRAK = Method(
    "trak",
    "kernel of the gradients of the training loss",
    Gradients(),
    kernel_scores,
    Ridge("agreement"),
    self_influence=True,
)
RELATIVE_IF = Method(
    "relative-if",
    "trak over the norm of the image's preconditioned gradient",
    Gradients(),
    relative_scores,
    Ridge("agreement"),
)
RENORMALIZED_IF = replace(
    RELATIVE_IF,
    name="renormalized-if",
    summary="trak over the norm of the image's gradient",
    formula=renormalized_scores,
)
JOURNEY_TRAK = Method(
    "journey-trak",
    "trak with the query's gradients along its sampling trajectory, or at one step",
    Gradients(queries="trajectories"),
    kernel_scores,
    Ridge("agreement"),
)
TRAK_ENSEMBLE = replace(
    TRAK, name="trak-ensemble", summary="the mean of trak over retrained models", needs=Gradients(models="retrained")
)
JOURNEY_TRAK_ENSEMBLE = replace(
    JOURNEY_TRAK,
    name="journey-trak-ensemble",
    summary="the mean of journey-trak over retrained models",
    needs=Gradients(models="retrained", queries="trajectories"),
)
