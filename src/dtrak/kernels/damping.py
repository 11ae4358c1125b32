"""λ: how little the training images may differ in a direction before the kernel forgets it.

What matters is how many directions the kernel keeps, its effective dimension

    d(λ) = Σ_r s_r / (s_r + λ)

On the same model the best λ of different objectives lie orders of magnitude apart, but their d hardly differ. So both
ways to do without a search set d: `spectrum` to a tenth of the images, `auto` to where two objectives agree.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from dtrak.errors import UsageError
from dtrak.kernels.preconditioner import Array, Preconditioner, effective_dimension, mean_eigenvalue
from dtrak.noise import stream

SHARE = 0.1  # of the images: what `spectrum` takes as the dimension
LEAST, MOST = 0.05, 0.25  # of the images, for `auto`: where agreement falls slowly, its end is uncertain
SHARE_OF_ROWS = 0.15  # of images × copies: what `auto` takes for kernels of noised copies, docs/results.md
SHARE_OF_RANK, OF_COPIES = 1 / 2, 2 / 3  # no rule takes more of the directions; more for kernels of noised copies
TRIED = 24  # dimensions that `auto` tries
ASKED = 100  # training images that it asks about
CONFIRMED = 0.9  # of a dimension, that the other objective has to ask for

Automatic = Callable[[Preconditioner], float]  # the dimension that `auto` sets for a kernel


@dataclass(frozen=True)
class Damping:
    """λ by a rule, as it is, or as a fraction of the mean eigenvalue of ΦΦᵀ, so that no scale matters."""

    kind: Literal["auto", "spectrum", "relative", "absolute"] = "auto"
    value: float = 0.0  # unless by a rule

    @classmethod
    def parse(cls, text: float | str) -> "Damping":
        """From `auto`, from `spectrum`, from `0.1`, relative, or from `absolute:5`."""
        text = str(text)
        if text in ("spectrum", "auto"):
            return cls("spectrum" if text == "spectrum" else "auto")
        number = text.removeprefix("absolute:")
        try:
            value = float(number)
        except ValueError:
            value = np.nan
        if not (np.isfinite(value) and value > 0):
            raise UsageError(
                f"damping {text!r}: give auto, spectrum, a positive fraction of the mean eigenvalue such as 0.1, "
                "or absolute:5"
            )
        return cls("relative" if number == text else "absolute", value)

    @property
    def compares_objectives(self) -> bool:
        """Whether the kernel of the same images and `compared_objective` is needed."""
        return self.kind == "auto"

    def absolute(self, kernel: Preconditioner, automatic: Automatic | None = None) -> float:
        """λ for a kernel, whose rule for `auto` is given."""
        match self.kind:
            case "spectrum":
                return damping_of_dimension(kernel, at_most(SHARE * kernel.images, kernel))
            case "auto":
                if automatic is None:
                    raise UsageError(
                        "damping 'auto' compares two objectives, and the features of one are not there: "
                        "ask for --damping auto when they are made, or for --method trak,d-trak"
                    )
                return damping_of_dimension(kernel, automatic(kernel))
            case "relative":
                return self.value * mean_eigenvalue(kernel)
            case "absolute":
                return self.value


def compared_objective(objective: str) -> str:
    """Another objective that sees the same influence with different noise."""
    return "square" if objective == "simple" else "simple"


def at_most(dimension: float, kernel: Preconditioner, share: float = SHARE_OF_RANK) -> float:
    """A dimension, or a share of the kernel's rank if that is less."""
    return min(dimension, share * len(kernel.eigenvalues))


def damping_of_dimension(kernel: Preconditioner, dimension: float) -> float:
    """The λ whose effective dimension is this, which has to be less than the rank."""
    rank = len(kernel.eigenvalues)
    low = np.log(kernel.eigenvalues[0] / (2 * rank))  # d ≥ r − ½
    with np.errstate(divide="ignore", over="ignore"):  # of a dimension of nothing, λ is infinite
        high = np.log(kernel.eigenvalues.sum() / dimension)  # d ≤ Σ s / λ
    if effective_dimension(kernel, np.exp(high)) >= dimension:  # but for rounding, where d is next to nothing
        return float(np.exp(high))
    return float(np.exp(brentq(lambda log: effective_dimension(kernel, np.exp(log)) - dimension, low, high)))


def damping_as_of(other: Preconditioner, its_damping: float, kernel: Preconditioner) -> float:
    """The λ with which a kernel keeps as many directions as another one does with its own."""
    return damping_of_dimension(kernel, at_most(effective_dimension(other, its_damping), kernel))


def bounded_agreement(kernel: Preconditioner, compared: Callable[[], Preconditioner]) -> float:
    """The dimension at which two objectives agree, within reason; `compared` is fitted on the other one."""
    agreed = np.clip(agreed_dimension(kernel, compared()), LEAST * kernel.images, MOST * kernel.images)
    return at_most(float(agreed), kernel)


def share_of_rows(kernel: Preconditioner, copies: int) -> float:
    """The dimension that `auto` sets for kernels of noised copies: a share of the rows that it was fitted on."""
    return at_most(SHARE_OF_ROWS * copies * kernel.images, kernel, OF_COPIES)


def agreed_dimension(kernel: Preconditioner, compared: Preconditioner) -> float:
    """The largest dimension at which two objectives' scores still confirm each other.

    Both see the same influence, each with noise of its own. Let the one keep d directions, and ask at which dimension
    the other's scores correlate best with its scores. While the last of the d directions are influence, that is d;
    where they are noise, which the other does not share, it is less. The answer is the last d, before the two ask for
    less than CONFIRMED of it.
    """
    most = min(len(kernel.eigenvalues), len(compared.eigenvalues)) / 2
    dimensions = np.geomspace(min(4, most / 2), most, TRIED)
    rows = stream("auto damping").permutation(len(kernel))[:ASKED]
    own, other = (scores_of_others(one, rows, dimensions) for one in (kernel, compared))
    agreement = np.einsum("irn,jrn->ij", own, other, optimize=True)  # [own dimensions, the other's]
    answers = (_peaks(agreement) + _peaks(agreement.T)) / 2 - np.arange(TRIED)  # in steps of the grid
    excess = answers * np.log(dimensions[1] / dimensions[0]) - np.log(CONFIRMED)  # falls as d grows
    last = int(np.flatnonzero(excess >= 0).max(initial=0))
    if last == TRIED - 1 or excess[last] < 0:
        return float(dimensions[last])
    part = excess[last] / (excess[last] - excess[last + 1])
    return float(dimensions[last] ** (1 - part) * dimensions[last + 1] ** part)


def _peaks(curves: Array) -> Array:
    """Where each column of curves [points, columns] is largest, between points as a parabola has it: [columns]."""
    top = curves.argmax(0).clip(1, len(curves) - 2)
    before, at, after = (curves[top + step, np.arange(curves.shape[1])] for step in (-1, 0, 1))
    bend = before - 2 * at + after
    shift = np.divide(before - after, 2 * bend, out=np.zeros_like(bend), where=bend < 0)
    return np.asarray(top + shift.clip(-1, 1), dtype=np.float64)


def scores_of_others(kernel: Preconditioner, rows: NDArray[np.int64], dimensions: Array) -> NDArray[np.float32]:
    """What every image does for the training images `rows`, standardised: [dimensions, rows, N].

    Leaving the image itself out of the kernel would scale the scores of all others alike: only its own is dropped.
    """
    coordinates = kernel.train_coordinates(rows)
    found = np.stack([kernel.scores(coordinates, damping_of_dimension(kernel, one)) for one in dimensions])
    found[:, np.arange(len(rows)), rows] = np.nan
    found -= np.nanmean(found, axis=2, keepdims=True)
    norms = np.sqrt(np.nansum(found**2, axis=2, keepdims=True))
    return np.asarray(np.nan_to_num(np.divide(found, norms, out=np.zeros_like(found), where=norms > 0)))


# What a sweep tries: the paper's own values, and half decades of the mean eigenvalue.
GRIDS: dict[str, tuple[Damping, ...]] = {
    "paper": tuple(Damping("absolute", digit * 10.0**power) for power in range(-2, 7) for digit in (1, 2, 5)),
    "log": tuple(Damping("relative", 10.0 ** (power / 2)) for power in range(-10, 7)),
}
