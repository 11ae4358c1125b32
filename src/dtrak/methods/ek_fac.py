"""EK-FAC influence for diffusion (Mlodozeniec et al., 2024): the Gauss–Newton matrix of the network as the kernel.

τ(x)_n = ∇ℓ(x)ᵀ (G + λI)⁻¹ ∇ℓ_n,        G in the directions of its Kronecker factors, ∇ℓ the whole gradient
"""

from dtrak.methods.method import Gradients, Kronecker, Method, kernel_scores

EK_FAC = Method(
    "ek-fac",
    "influence functions: the Gauss–Newton matrix of the network, in Kronecker factors (EK-FAC)",
    Gradients(projection="identity"),
    kernel_scores,
    Kronecker("published"),
    self_influence=True,
)
