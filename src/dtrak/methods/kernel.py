"""Methods with a kernel: they compare gradients of queries and training images through an inverse such as
(ΦᵀΦ + λI)⁻¹, where Φ are the gradients of all training images."""

import numpy as np

from dtrak.inputs.arrays import KernelInput
from dtrak.inputs.copies import Residuals
from dtrak.inputs.curvature import WholeGradients
from dtrak.inputs.gradients import Gradients
from dtrak.kernels.damping import Damping
from dtrak.kernels.preconditioner import Array
from dtrak.methods.method import Method, Values


def kernel_scores(vectors: KernelInput, damping: Damping) -> Values:
    """τ(x)_n = φ(x)ᵀ (ΦᵀΦ + λI)⁻¹ φ_n."""
    return vectors.kernel.scores(vectors.coordinates, vectors.absolute(damping), vectors.chosen)


def relative_scores(vectors: KernelInput, damping: Damping) -> Values:
    """τ(x)_n = φ(x)ᵀ (ΦᵀΦ + λI)⁻¹ φ_n / ‖(ΦᵀΦ + λI)⁻¹ φ_n‖."""
    norms = vectors.kernel.preconditioned_norms(vectors.absolute(damping), vectors.chosen)
    return _divided(kernel_scores(vectors, damping), norms)


def renormalized_scores(vectors: KernelInput, damping: Damping) -> Values:
    """τ(x)_n = φ(x)ᵀ (ΦᵀΦ + λI)⁻¹ φ_n / ‖φ_n‖."""
    return _divided(kernel_scores(vectors, damping), vectors.kernel.norms(vectors.chosen))


def squared_scores(vectors: KernelInput, damping: Damping) -> Values:
    """τ(x)_n = (φ(x)ᵀ (ΦᵀΦ + λI)⁻¹ φ_n r_n / (1 − h_n))², with the leverage h_n = φ_nᵀ (ΦᵀΦ + λI)⁻¹ φ_n."""
    return np.square(kernel_scores(vectors, damping))  # the kernel has r_n and h_n in its scores


def _divided(scores: Values, norms: Array) -> Values:
    """Divide scores [Q, N] by norms [N]; a skipped image has the norm 0 and the score 0."""
    return np.divide(scores, norms, out=np.zeros_like(scores), where=norms > 0, dtype=np.float64, casting="same_kind")


TRAK = Method(
    "trak",
    "kernel of the gradients of the training loss",
    Gradients(),
    kernel_scores,
    damped=True,
    has_self_influence=True,
)
D_TRAK = Method(
    "d-trak",
    "the same kernel with the gradients of L_Square, or of any objective",
    Gradients("square", any_objective=True),
    kernel_scores,
    damped=True,
    has_self_influence=True,
)
MIXED_TRAK = Method(
    "mixed-trak",
    "the mean of d-trak over four objectives: L_Square, the training loss, its noise part, the mean prediction",
    Gradients("square", also=("simple", "interpolated(0)", "avg")),
    kernel_scores,
    damped=True,
    has_self_influence=True,
)
STEP_TRAK = Method(
    "step-trak",
    "one kernel of the gradients of every noised copy, with scores that are squared and keep their sign",
    Gradients(apart=True, any_objective=True),
    kernel_scores,
    damped=True,
    has_self_influence=True,
    sharpens=True,
)
RELATIVE_IF = Method(
    "relative-if",
    "trak over the norm of the image's preconditioned gradient",
    Gradients(),
    relative_scores,
    damped=True,
)
RENORMALIZED_IF = Method(
    "renormalized-if", "trak over the norm of the image's gradient", Gradients(), renormalized_scores, damped=True
)
EK_FAC = Method(
    "ek-fac",
    "influence functions: the Gauss–Newton matrix of the network, in Kronecker factors (EK-FAC)",
    WholeGradients(),
    kernel_scores,
    damped=True,
    has_self_influence=True,
)
DAS = Method(
    "das",
    "how far the prediction for the query moves if the image is left out, squared (Diffusion Attribution Score)",
    Residuals("avg"),
    squared_scores,
    damped=True,
    linear=False,
)
JOURNEY_TRAK = Method(
    "journey-trak",
    "trak with the query's gradients along its sampling trajectory, or at one step",
    Gradients(along_trajectory=True),
    kernel_scores,
    damped=True,
)
TRAK_ENSEMBLE = Method(
    "trak-ensemble",
    "the mean of trak over retrained models",
    Gradients(models="retrained"),
    kernel_scores,
    damped=True,
    has_self_influence=True,
)
D_TRAK_ENSEMBLE = Method(
    "d-trak-ensemble",
    "the mean of d-trak over retrained models",
    Gradients("square", any_objective=True, models="retrained"),
    kernel_scores,
    damped=True,
    has_self_influence=True,
)
JOURNEY_TRAK_ENSEMBLE = Method(
    "journey-trak-ensemble",
    "the mean of journey-trak over retrained models",
    Gradients(models="retrained", along_trajectory=True),
    kernel_scores,
    damped=True,
)
