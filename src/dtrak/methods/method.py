"""A method is a record: what it needs of training images and queries, the formula that gets it, and the kernel.

    scores = mean over models, objectives and kernels of  formula(input, λ)        [Q, N]

The inputs of formulas are in `dtrak.contracts`. The sign is the same for all methods: a positive score marks a
proponent, which means that training on the image lowers the query's loss. Records are plain data, which can be
compared; a variant is `replace(METHODS["trak"], name="trak-squared", square=True)`.
"""

from dataclasses import dataclass
from typing import Literal

from dtrak.contracts import Fit, Formula, KernelInput, Rule, Values


@dataclass(frozen=True)
class Gradients:
    """Each image has the projected gradients of its noised copies."""

    objectives: tuple[str, ...] = ("simple",)  # their scores are averaged; the first sets λ
    any_objective: bool = False  # whether the user may replace the first
    copies: Literal["averaged", "apart"] = "averaged"  # apart: of every copy, with all objectives in one kernel
    unit: bool = False  # whether every gradient is scaled to length 1
    # Where the user gives none: evenly spaced timesteps, or those with more of the image
    timesteps: Literal["uniform", "visible"] = "uniform"
    layers: Literal["usual", "later"] = "usual"  # those of the LoRA, else all; later: of a U-Net from its middle on
    projection: str = "sketch"
    models: Literal["final", "checkpoints", "retrained"] = "final"  # scores are averaged over several
    queries: Literal["images", "trajectories"] = "images"  # those of queries may be taken as they were drawn


@dataclass(frozen=True)
class Pixels:
    """Each image is a vector: the numbers that the model takes as its input, pixels in [−1, 1] or latents."""


@dataclass(frozen=True)
class NoisedPixels:
    """Each query has noised copies, as in training; training images are as they are."""


@dataclass(frozen=True)
class Embeddings:
    """Each image is a vector: its embedding by an image encoder."""


@dataclass(frozen=True)
class Outcomes:
    """The losses of the queries under models that were retrained on halves of the training images."""


@dataclass(frozen=True)
class Nothing:
    """Only the numbers of images, and a seed."""


Needs = Gradients | Pixels | NoisedPixels | Embeddings | Outcomes | Nothing


@dataclass(frozen=True)
class Ridge:
    """The kernel (G + λI)⁻¹ of the training features, G = Σ_n Σ_c φ_c(n) φ_c(n)ᵀ (`kernels/ridge.py`)."""

    damping: Rule = "agreement"  # how `auto` finds λ
    pooled: bool = True  # whether one kernel has all copies; else each has its own, and scores are averaged
    residuals: bool = False  # whether the formula gets how far predictions are from their targets


@dataclass(frozen=True)
class Kronecker:
    """The Gauss–Newton matrix of the network, with whole gradients (`kernels/kronecker.py`)."""

    damping: Rule = "published"


@dataclass(frozen=True)
class Method:
    """A method of attribution.

    `kernel` may also be the name of one in `dtrak.kernels.KERNELS`, or a function that fits one to rows. `auto` then
    finds λ by the "agreement" of two objectives if copies are averaged, and by the "trace" if they are apart.
    """

    name: str
    summary: str
    needs: Needs
    formula: Formula
    kernel: Ridge | Kronecker | str | Fit | None = None
    square: bool = False  # whether each score s becomes s·|s|: small ones, which are often noise, count less in sums
    linear: bool = True  # whether the formula's score of a sum of query features is the sum of their scores
    self_influence: bool = False  # whether the kernel gives the score of an image for itself, τ(x^n)_n


def kernel_scores(vectors: KernelInput, damping: float) -> Values:
    """τ(x)_n = Σ_c φ_c(x)ᵀ (G + λI)⁻¹ φ_c(n)."""
    return vectors.kernel.scores(vectors.coordinates, damping, vectors.train)


def described_needs(method: Method) -> tuple[str, str]:
    """Say in words what a method needs and what it costs, for the list of methods."""
    match method.needs:
        case Gradients() as needs:
            model, times = {
                "final": ("the model", ""),
                "checkpoints": ("checkpoints", "4 × "),
                "retrained": ("models retrained on halves", "S trainings and S × "),
            }[needs.models]
            seeds = " and the queries' seeds" * (needs.queries == "trajectories")
            several = f"{len(needs.objectives)} × " * (len(needs.objectives) > 1)
            if isinstance(method.kernel, Kronecker):
                return model + seeds, "3 × K gradients per image, kept whole"
            more = ", K predictions per training image" * (isinstance(method.kernel, Ridge) and method.kernel.residuals)
            return model + seeds, f"{times}{several}K gradients per image{more}"
        case Pixels():
            return "only the images", "next to nothing"
        case NoisedPixels():
            return "only the images", "K comparisons of all patches of two images"
        case Embeddings():
            return "an image encoder", "a pass of the encoder per image"
        case Outcomes():
            return "losses under models retrained on halves", "S trainings"
        case _:
            return "nothing", "nothing"
