"""What others can add to the package, each as a protocol: objectives, projections, kernels, families of models and
engines; and the arrays that the formula of a method gets. Nothing inherits from these classes.

`docs/architecture.md` shows one of each, and how another package offers them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn

    from dtrak.checks import Section
    from dtrak.images.images import Images
    from dtrak.models.diffusion import DiffusionModel
    from dtrak.models.memory import Layout

Array = NDArray[np.floating[Any]]  # float64, or float32 where memory counts
Values = NDArray[np.float32]  # scores [Q, N]; a positive one marks a proponent
EVERY = slice(None)  # selects all images

# An objective maps ε_θ [B, …], ε [B, …] and the ELBO weights [B] of B noised copies to ℓ [B].
Objective = Callable[["Tensor", "Tensor", "Tensor"], "Tensor"]
# The formula of a method maps one of the inputs below and λ to scores; methods without a kernel do not look at λ.
Formula = Callable[[Any, float], Values]


class Projection(Protocol):
    """A linear map from the gradients of all parameters to `dim` numbers."""

    dim: int
    has_shortcuts: bool  # whether `shortcut` can return functions

    def add(self, out: Tensor, name: str, gradient: Tensor) -> None:
        """Project a parameter's gradient [B, n] and add it to `out` [B, k]. This may overwrite the gradient."""

    def shortcut(self, name: str, layer: nn.Module, a: Tensor) -> Callable[[Tensor, Tensor], None] | None:
        """Return a function that projects a parameter's gradient without computing it, from its layer's input a.

        The function takes `out` [B, k], to which it adds, and the gradient of the layer's output. Return None if the
        parameter's gradient itself is needed.
        """


class Rows(Protocol):
    """The features φ_c(n) of C noised copies of N images, [N, C, k], in memory or not. C is 1 for averaged copies."""

    @property
    def shape(self) -> tuple[int, int]: ...  # (C, k)

    def __len__(self) -> int: ...  # N

    def blocks(self, wanted: range | None = None) -> Iterator[tuple[range, Tensor]]:
        """Yield all images in order, or only the `wanted` ones, in blocks: (images, float32 [b, C, k])."""

    def at(self, places: Sequence[int]) -> Tensor:
        """Return some images in the given order, float32 [b, C, k]."""


class Kernel(Protocol):
    """A kernel computes with (G + λI)⁻¹ for any λ. It is fitted on the rows of the training images by a function.

    Scores are cheap in its coordinates, which do not depend on λ. `train` selects some of the N training images.
    """

    @property
    def images(self) -> int: ...  # how many training images have a feature; those that were left out have zeros

    @property
    def size(self) -> int: ...  # trace ÷ size is the mean eigenvalue, which relative damping is a fraction of

    @property
    def trace(self) -> float: ...  # the sum of the eigenvalues of G

    @property
    def rank(self) -> int: ...  # how many eigenvalues are not zero

    @property
    def eigenvalues(self) -> Array: ...  # those that are not zero, [r], in rising order; they may take long

    def __len__(self) -> int: ...  # N

    def dimension(self, damping: float) -> float:
        """Return d(λ) = Σ_r s_r / (s_r + λ), how many directions are kept. It falls from r to 0 as λ grows."""

    def coordinates(self, rows: NDArray[np.float32]) -> Array:
        """Return the coordinates [Q, C, r] of features [Q, C, k]."""

    def train_coordinates(self, places: Sequence[int]) -> Array:
        """Return the coordinates [b, C, r] of some training images, as if they were queries."""

    def scores(self, coordinates: Array, damping: float, train: slice = EVERY) -> Values:
        """Return τ(x)_n = Σ_c φ_c(x)ᵀ (G + λI)⁻¹ φ_c(n) [Q, N] for an absolute λ, from coordinates of queries."""

    def squares(self, damping: float, power: int, train: slice = EVERY) -> Array:
        """Return Σ_c φ_c(n)ᵀ (G + λI)⁻ᵖ φ_c(n), [N]: squared lengths for p = 0, self-influence for p = 1, or p = 2."""


Fit = Callable[[Rows], Kernel]
Rule = Literal["agreement", "rows", "trace", "published"]  # how `auto` finds λ for a kernel: kernels/damping.py

# The inputs of formulas


@dataclass(frozen=True, eq=False)
class KernelInput:
    """For methods with a kernel: some queries in its coordinates, and some of its training images."""

    kernel: Kernel
    coordinates: Array  # [Q, C, r]
    train: slice
    residuals: Array | None = None  # how far the prediction for each training image is from its target, [N]


@dataclass(frozen=True, eq=False)
class Vectors:
    """For methods without a kernel: pixels, embeddings or gradients of both sides."""

    train: Rows  # [N, C, k]
    queries: NDArray[np.float32]  # [Q, C, k]


@dataclass(frozen=True, eq=False)
class NoisedQueries:
    """Noised copies x_t = s x + σ ε of the queries, and the training images without noise."""

    train: Rows  # y [N, 1, channels · height · width]
    queries: Tensor  # x_t [copies, Q, channels, height, width]
    signal: Tensor  # s [copies]
    noise: Tensor  # σ [copies]


@dataclass(frozen=True, eq=False)
class RetrainedLosses:
    """The losses of the queries under S models. Each model was retrained on some of the training images."""

    masks: NDArray[np.bool_]  # [S, N], which training images each model had
    losses: Array  # [S, Q]


@dataclass(frozen=True)
class Counts:
    """The numbers of queries and of training images, and a seed, for random scores."""

    queries: int
    train: int
    seed: int


# Models and engines

Shape = tuple[int, int, int]  # (C, H, W) of an image
Difference = tuple[str, Any, Any]  # between two models: the name of a setting, and its value in each model


class Family(Protocol):
    """A family opens, makes, saves, checks and describes models of one kind.

    The argument `settings` of a method is an object of the family's class `settings`.
    """

    settings: type[Section]  # the class of a recipe's section `model`, whose field `kind` is the family's name
    defaults: Mapping[str, Mapping[str, Any]]  # for a recipe's other sections, if the family needs its own
    attributed: str  # describes the parameters that are trained and attributed
    makes_new_weights: bool  # whether all weights of a new model are new; else some must exist already

    def opens(self, folder: Path) -> bool:
        """Tell whether a folder holds a model of this family."""

    def check(self, folder: Path, source: str) -> None:
        """Refuse a folder whose settings are not supported, before its weights are downloaded or read."""

    def load(self, folder: Path, source: str, lora: str | None, prompt: str | None) -> DiffusionModel:
        """Load the model in a folder; `source` is what the user typed."""

    def is_conditional(self, settings: Any) -> bool:
        """Tell whether pictures are drawn of a prompt or a class."""

    def timesteps(self, settings: Any) -> int:
        """Return T, the length of the noise schedule."""

    def new(self, settings: Any, shape: Shape, source: str) -> DiffusionModel:
        """Make a model for images of a shape; its new weights are drawn from torch's global generator."""

    def save(self, model: DiffusionModel, folder: Path) -> None:
        """Write a folder that `load` and diffusers open."""

    def check_complete(self, settings: Mapping[str, Any], recipe: str) -> None:
        """Refuse a recipe's section `model` that lacks what the user has to give, before it is validated."""

    def check_buildable(self, settings: Any, images: Images, recipe: str) -> None:
        """Refuse settings from which no model for these images can be built; no weights are made or read."""

    def difference(self, model: DiffusionModel, settings: Any, shape: Shape, recipe: str) -> Difference | None:
        """Return the first setting in which a model differs from the recipe's: ("unet.dropout", 0.0, 0.1)."""

    def settings_of(self, model: DiffusionModel) -> dict[str, Any]:
        """Return a recipe's section `model` that makes such a model."""

    def lay_out(self, settings: Any, shape: Shape, source: str) -> Layout:
        """Return the sizes of the model without making it."""

    def most_prompts(self, settings: Any, images: int, classes: int | None) -> int:
        """Return the largest possible number of different prompts, including the empty one."""

    def to_fetch(self, settings: Any, layout: Layout) -> list[str]:
        """Describe what has to be downloaded first."""

    def description(self, settings: Any, images: str) -> str:
        """Describe a model for such images."""


Context = TypeVar("Context")
Job = TypeVar("Job")
Result = TypeVar("Result")


class Engine(Protocol):
    """An engine calls `work(context, job)` for every job, in this process or elsewhere, and returns each result.

    So no file system has to be shared. A job has the same number of threads in every engine, so its sums are the same,
    bit for bit.
    """

    is_here: bool  # whether jobs run in this process, where all of its GPUs keep their names

    def run(
        self,
        work: Callable[[Context, Job], Result],
        context: Context,
        jobs: Sequence[Job],
        threads: int = 1,
        gpu: bool = False,
        card: int | None = None,
    ) -> Iterator[tuple[Job, Result]]:
        """Run all jobs, and yield each with its result when it is done, in any order.

        `work` must be a function at the top level of a module. Each worker receives the context once. A job has
        `threads` threads. With `gpu` it also has a GPU to itself, and sees no other: any GPU, or the one that this
        process calls `cuda:card`.
        """
