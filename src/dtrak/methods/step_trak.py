"""Step-TRAK, the default: one kernel of the gradients of every noised copy, each at length 1.

    τ(x)_n = s·|s|,        s = Σ_c φ_c(x)ᵀ (G + λI)⁻¹ φ_c(n),        G = Σ_n Σ_c φ_c(n) φ_c(n)ᵀ

A copy of the query is compared with the same copy of a training image, at the same timestep and with the same noise.
"""

from dtrak.methods.method import Gradients, Method, Ridge, kernel_scores

STEP_TRAK = Method(
    "step-trak",
    "one kernel of the gradients of every noised copy, with scores that are squared and keep their sign",
    Gradients(
        any_objective=True, copies="apart", unit=True, timesteps="visible", layers="later", projection="factored"
    ),
    kernel_scores,
    Ridge("trace"),
    square=True,
    self_influence=True,
)
