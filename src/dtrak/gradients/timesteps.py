"""Choose which of the T timesteps are used: evenly spaced ones, those with more of the image, or those of a list."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dtrak.checks import shortened
from dtrak.errors import UsageError

if TYPE_CHECKING:
    from dtrak.models import DiffusionModel


def timesteps_of(model: "DiffusionModel", choice: int | str, apart: bool = False) -> tuple[int, ...]:
    """Return the chosen timesteps of a model; if its noised copies are kept `apart`, `10` means `visible:10`."""
    return select_timesteps(choice, model.timesteps, apart, model.visible.tolist())


def select_timesteps(
    choice: int | str, total: int, apart: bool = False, visible: Sequence[float] | None = None
) -> tuple[int, ...]:
    """Return the chosen timesteps, counted from zero.

    - `10` or `"10"` means K = 10 evenly spaced timesteps, range(0, T, T//K)[:K]. If `apart` is set, it means the same
      as `"visible:10"`.
    - `"visible:10"` means ten timesteps between which equal shares of `visible` lie: how much of an image is left at
      each timestep. If `visible` is None, because only the number of timesteps matters, it is the same for all.
    - `"middle:10"` means the middles of ten equal intervals.
    - `"cumulative:10"` means the first ten timesteps.
    - `"0,100,200"` means these timesteps. A list of one needs a comma at its end.
    """
    text = choice.strip() if isinstance(choice, str) else shortened(choice)
    too_many = text.count(",") > total  # such a list is refused without reading its numbers
    try:
        if "," in text:
            chosen = [] if too_many else [int(part) for part in text.split(",") if part.strip()]
        elif text.startswith("cumulative:"):
            chosen = list(range(_count(text.removeprefix("cumulative:"), total)))
        elif text.startswith("visible:") or (apart and text.isdecimal()):
            count = _count(text.removeprefix("visible:"), total)
            chosen = _evenly_visible(count, np.ones(total) if visible is None else np.asarray(visible))
        elif text.startswith("middle:"):
            count = _count(text.removeprefix("middle:"), total)
            chosen = [(2 * index + 1) * total // (2 * count) for index in range(count)]
        else:
            count = _count(text, total)
            chosen = list(range(0, total, total // count))[:count]
    except ValueError:
        raise UsageError(
            f"timesteps {shortened(text)}: give a number from 1 to {total}, visible:NUMBER, middle:NUMBER, "
            "cumulative:NUMBER, or a list such as 0,100,200"
        ) from None
    if not chosen or len(set(chosen)) < len(chosen) or min(chosen) < 0 or max(chosen) >= total:
        raise UsageError(f"timesteps {shortened(text)}: a list holds different numbers from 0 to {total - 1}")
    return tuple(chosen)


def _evenly_visible(count: int, visible: NDArray[np.float64]) -> list[int]:
    """Return `count` different timesteps; where the i-th is, a share (i + ½) / count of `visible` [T] is past."""
    past, order = np.cumsum(visible) / visible.sum(), np.arange(count)
    found = np.searchsorted(past, (order + 0.5) / count)
    found = np.maximum.accumulate(found - order) + order  # different ones, also if there are nearly as many as T
    return [int(one) for one in np.minimum(found, len(visible) - count + order)]


def _count(text: str, total: int) -> int:
    """Return the number in a text; raise a ValueError if it is not from 1 to `total`."""
    count = int(text)
    if not 1 <= count <= total:
        raise ValueError
    return count
