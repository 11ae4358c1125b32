"""D-TRAK: TRAK's kernel with the gradients of another objective than the training loss (Zheng et al., 2024).

    τ(x)_n = φ(x)ᵀ (ΦᵀΦ + λI)⁻¹ φ_n,        φ = the gradient of L_Square = mean ε_θ², or of any objective

Mixed-TRAK is the mean over several objectives, whose kernels keep as many directions as the first.
"""

from dataclasses import replace

from dtrak.methods.method import Gradients, Method, Ridge, kernel_scores

D_TRAK = Method(
    "d-trak",
    "the same kernel with the gradients of L_Square, or of any objective",
    Gradients(("square",), any_objective=True),
    kernel_scores,
    Ridge("agreement"),
    self_influence=True,
)
MIXED_TRAK = replace(
    D_TRAK,
    name="mixed-trak",
    summary="the mean of d-trak over four objectives: L_Square, the training loss, its noise part, the mean prediction",
    needs=Gradients(("square", "simple", "interpolated(0)", "avg")),
)
D_TRAK_ENSEMBLE = replace(
    D_TRAK,
    name="d-trak-ensemble",
    summary="the mean of d-trak over retrained models",
    needs=Gradients(("square",), any_objective=True, models="retrained"),
)
