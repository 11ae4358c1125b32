"""Choose the damping λ of a kernel, which keeps directions with eigenvalues far above λ and damps the others.

The number of directions that a kernel keeps is its effective dimension

    d(λ) = Σ_r s_r / (s_r + λ)

For the same model, the best λ of different objectives differ by orders of magnitude, but their d far less. So the
two rules that need no search set d. `spectrum` sets it to a tenth of the number of images. `auto` sets it to the
largest d at which the scores of two objectives agree. Kernels of noised copies have other rules for `auto`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from dtrak.contracts import Array, Kernel, Rule
from dtrak.errors import UsageError
from dtrak.noise import stream
from dtrak.wording import plain

SHARE = 0.1  # `spectrum` sets the dimension to this share of the images
# `auto` sets the dimension to at least and at most these shares of the images. If the agreement of two objectives falls
# slowly, it is uncertain where it ends.
LEAST, MOST = 0.05, 0.25
SHARE_OF_ROWS = 0.15  # for kernels of noised copies, `auto` sets it to this share of images × copies: docs/results.md
# If scores are squared, `auto` sets λ to this share of the sum of all eigenvalues, divided by √copies: the copies of an
# image are alike, but not the same. Gradients of other objectives have more in common: docs/results.md.
SHARE_OF_TRACE, OF_OTHERS = 2.2e-3, 2.2e-4
# No rule sets the dimension to more than the first share of the kernel's rank, or the second for noised copies.
SHARE_OF_RANK, OF_COPIES = 1 / 2, 2 / 3
TRIED = 24  # how many dimensions `auto` tries
SAMPLED = 100  # how many training images it takes as queries
# Of more than STRETCHES · STRETCH images, it compares the scores of this many stretches of neighbouring images, spread
# evenly. So its time and memory do not grow with the number of images.
STRETCHES, STRETCH = 100, 100
CONFIRMED = 0.9  # two objectives agree on a dimension d if their scores fit best at this share of d or more

SHARE_OF_MEAN = 0.1  # λ ÷ the mean eigenvalue, as in Grosse et al. (2023)


@dataclass(frozen=True)
class Damping:
    """A damping says how λ is found: by a rule, as a fraction of the mean eigenvalue of ΦΦᵀ, or as a number.

    A fraction does not depend on the scale of the features.
    """

    kind: Literal["auto", "spectrum", "relative", "absolute"] = "auto"
    value: float = 0.0  # not used by rules

    @classmethod
    def parse(cls, text: float | str) -> "Damping":
        """Read `auto`, `spectrum`, a fraction such as `0.1`, or a number such as `absolute:5`."""
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
        """Return whether the kernel of the same images and of the `compared_objective` is needed."""
        return self.kind == "auto"

    @property
    def is_rule(self) -> bool:
        """Return whether λ is found from the features, and not given."""
        return self.kind in ("auto", "spectrum")

    def needs_eigenvalues(self, rule: Rule) -> bool:
        """Return whether λ is found from the eigenvalues of a kernel, and not from their sum, if `auto` is a rule."""
        return self.kind == "spectrum" or (self.kind == "auto" and rule in ("agreement", "rows"))

    def absolute(self, kernel: Kernel, by_rule: Callable[[Kernel], float] | None = None) -> float:
        """Return λ for a kernel; `by_rule` finds it for `auto`."""
        match self.kind:
            case "spectrum":
                return damping_of_dimension(kernel, at_most(SHARE * kernel.images, kernel))
            case "auto":
                return automatic("agreement", kernel) if by_rule is None else by_rule(kernel)
            case "relative":
                return self.value * kernel.trace / kernel.size
            case "absolute":
                return self.value


def compared_objective(objective: str) -> str:
    """Return the objective to compare with. Its scores measure the same influence, but have different noise."""
    return "square" if objective == "simple" else "simple"


def at_most(dimension: float, kernel: Kernel, share: float = SHARE_OF_RANK) -> float:
    """Return the dimension, or this share of the kernel's rank if that is less."""
    return min(dimension, share * kernel.rank)


def damping_of_dimension(kernel: Kernel, dimension: float) -> float:
    """Return the λ at which the effective dimension is this. The dimension has to be less than the rank."""
    low = np.log(kernel.eigenvalues[0] / (2 * kernel.rank))  # d ≥ r − ½
    with np.errstate(divide="ignore", over="ignore"):  # for the dimension 0, λ is infinite
        high = np.log(kernel.trace / dimension)  # d ≤ Σ s / λ
    if kernel.dimension(np.exp(high)) >= dimension:  # if d is close to 0, rounding errors can make this true
        return float(np.exp(high))
    return float(np.exp(brentq(lambda log: kernel.dimension(np.exp(log)) - dimension, low, high)))


def damping_as_of(other: Kernel, its_damping: float, kernel: Kernel) -> float:
    """Return the λ with which `kernel` keeps as many directions as the kernel `other` keeps with `its_damping`."""
    return damping_of_dimension(kernel, at_most(other.dimension(its_damping), kernel))


def automatic(
    rule: Rule,
    kernel: Kernel,
    copies: int = 1,
    objective: str = "simple",
    other: Callable[[], Kernel] | None = None,
) -> float:
    """Return the λ that `auto` sets by a rule, for a kernel of so many copies and of this (first) objective.

    - "agreement" keeps as many directions as two objectives agree on, in the shares LEAST to MOST of the images;
      `other` returns the kernel that is fitted on the other objective
    - "rows" keeps a share of images × copies
    - "trace", for scores that are squared, is a share of trace(G) / √copies; for unit rows, trace(G) is images × copies
    - "published" is a share of the mean eigenvalue
    """
    match rule:
        case "agreement":
            if other is None:
                raise UsageError(
                    "damping 'auto' compares two objectives, and the features of one are missing: "
                    "give --damping auto when features are made, or give --method trak,d-trak"
                )
            agreed = np.clip(agreed_dimension(kernel, other()), LEAST * kernel.images, MOST * kernel.images)
            return damping_of_dimension(kernel, at_most(float(agreed), kernel))
        case "rows":
            return damping_of_dimension(kernel, at_most(SHARE_OF_ROWS * copies * kernel.images, kernel, OF_COPIES))
        case "trace":
            return (SHARE_OF_TRACE if objective == "simple" else OF_OTHERS) * kernel.trace / math.sqrt(copies)
        case "published":
            return SHARE_OF_MEAN * kernel.trace / kernel.size


def agreed_dimension(kernel: Kernel, compared: Kernel) -> float:
    """Return the largest dimension at which the scores of two objectives agree.

    The scores of both measure the same influence, but each has its own noise. Let one kernel keep d directions, and
    find the dimension at which the scores of the other kernel correlate best with its scores. As long as the last of
    the d directions show influence, this best dimension is about d. If they show only noise, which the other kernel
    does not have, it is less. Each kernel is compared with the other in this way, and the geometric mean of the two
    best dimensions is taken. The result is the largest d for which this mean is at least CONFIRMED · d.
    """
    most = min(kernel.rank, compared.rank) / 2
    dimensions = np.geomspace(min(4, most / 2), most, TRIED)
    rows = stream("auto damping").permutation(len(kernel))[:SAMPLED]
    own, other = (scores_of_others(one, rows, dimensions) for one in (kernel, compared))
    agreement = np.einsum("irn,jrn->ij", own, other, optimize=True)  # [own dimensions, the other's]
    shifts = (_peaks(agreement) + _peaks(agreement.T)) / 2 - np.arange(TRIED)  # from d to the best one, in grid steps
    excess = shifts * np.log(dimensions[1] / dimensions[0]) - np.log(CONFIRMED)  # falls as d grows
    last = int(np.flatnonzero(excess >= 0).max(initial=0))
    if last == TRIED - 1 or excess[last] < 0:
        return float(dimensions[last])
    part = excess[last] / (excess[last] - excess[last + 1])
    return float(dimensions[last] ** (1 - part) * dimensions[last + 1] ** part)


def _peaks(curves: Array) -> Array:
    """Return where each column of curves [points, columns] is largest, [columns], interpolated by a parabola."""
    top = curves.argmax(0).clip(1, len(curves) - 2)
    before, at, after = (curves[top + step, np.arange(curves.shape[1])] for step in (-1, 0, 1))
    bend = before - 2 * at + after
    shift = np.divide(before - after, 2 * bend, out=np.zeros_like(bend), where=bend < 0)
    return np.asarray(top + shift.clip(-1, 1), dtype=np.float64)


def scores_of_others(kernel: Kernel, rows: NDArray[np.int64], dimensions: Array) -> NDArray[np.float32]:
    """Return the standardised scores of the compared images for the training images `rows`: [dimensions, rows, M].

    The score of an image for itself is set to zero. The image stays in the kernel: without it, the scores of all
    others would only be multiplied by a common factor.
    """
    coordinates, compared = kernel.train_coordinates(rows.tolist()), compared_images(len(kernel))
    dampings = [damping_of_dimension(kernel, one) for one in dimensions]
    found = np.empty((len(dampings), len(rows), sum(one.stop - one.start for one in compared)), dtype=np.float32)
    for target, damping in zip(found, dampings, strict=True):  # a kernel keeps what it has solved for the last λ
        np.concatenate([kernel.scores(coordinates, damping, one) for one in compared], axis=1, out=target)
    positions = np.concatenate([np.arange(one.start, one.stop) for one in compared])
    found[:, rows[:, None] == positions] = np.nan
    found -= np.nanmean(found, axis=2, keepdims=True)
    norms = np.sqrt(np.nansum(found**2, axis=2, keepdims=True))
    return np.asarray(np.nan_to_num(np.divide(found, norms, out=np.zeros_like(found), where=norms > 0)))


def compared_images(count: int) -> list[slice]:
    """Return the images whose scores are compared: all of them, or evenly spread stretches if they are many."""
    if count <= STRETCHES * STRETCH:
        return [slice(0, count)]
    starts = np.linspace(0, count - STRETCH, STRETCHES).astype(int)
    return [slice(start, start + STRETCH) for start in starts.tolist()]


@dataclass(frozen=True)
class UsedDamping:
    """The λ that scores were computed with, in numbers. For several models or objectives, it is that of the first."""

    rule: str  # auto, spectrum, relative or absolute
    relative: float  # λ ÷ the mean eigenvalue
    absolute: float  # λ
    kept: float  # the effective dimension d(λ): how many directions the kernel keeps
    rank: int  # how many directions there are

    @classmethod
    def of(cls, kernel: Kernel, damping: Damping, absolute: float) -> "UsedDamping":
        """Return the numbers of a damping, which is this λ for a kernel."""
        relative = absolute * kernel.size / kernel.trace
        return cls(damping.kind, relative, absolute, kernel.dimension(absolute), kernel.rank)

    def __str__(self) -> str:
        """Return it in words: auto: λ = 0.0123 × mean eigenvalue, which keeps 150 of 1,000 directions."""
        rule = f"{self.rule}: " if self.rule in ("auto", "spectrum") else ""
        kept = f"keeps {round(self.kept):,} of {self.rank:,} directions"
        return f"{rule}λ = {plain(self.relative)} × mean eigenvalue, which {kept}"


# The dampings that a sweep tries: the paper's values, for its features, or fractions of the mean eigenvalue in steps of
# √10.
GRIDS: dict[str, tuple[Damping, ...]] = {
    "paper": tuple(Damping("absolute", digit * 10.0**power) for power in range(-2, 7) for digit in (1, 2, 5)),
    "log": tuple(Damping("relative", 10.0 ** (power / 2)) for power in range(-10, 7)),
}


def for_scaled(dampings: Sequence[Damping], scale: float) -> tuple[Damping, ...]:
    """Return what dampings of features Φ′ are for the features Φ = Φ′ / √scale, so that scores stay the same.

    The paper's random matrix is not divided by √k, and ours are. Its inner products are k times larger, and its λ, too:

        φ′ᵀ (Φ′ᵀΦ′ + λI)⁻¹ φ′ = φᵀ (ΦᵀΦ + λ/k I)⁻¹ φ

    A rule and a fraction do not depend on the scale.
    """
    return tuple(replace(one, value=one.value / scale) if one.kind == "absolute" else one for one in dampings)
