"""The noised copies of an image: which of the T timesteps are used, and which noises at each.

A number alone, such as 10, means ten timesteps of the usual form of a method. Forms count from t = 0:

    uniform:10        range(0, T, T // 10)[:10], as in the paper
    visible:10        equal shares of what is visible of an image, s_t / √(s_t² + σ_t²), lie between them
    cumulative:10     the first ten
    0,100,200         these; a list of one needs a comma at its end
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dtrak.checks import shortened
from dtrak.errors import UsageError
from dtrak.noise import gaussian

if TYPE_CHECKING:
    from dtrak.models import DiffusionModel

FORMS = ("uniform", "visible", "cumulative")


def normal_timesteps(choice: int | str, usual: str = "uniform") -> str:
    """Return a choice of timesteps as a text of one of the forms; a number alone is one of the `usual` form."""
    text = "".join(choice.split()) if isinstance(choice, str) else shortened(choice)
    if "," in text:
        listed = text.strip(",")
        return listed if "," in listed else f"{listed},"
    return text if ":" in text else f"{usual}:{text}"


def select_timesteps(
    choice: int | str, total: int, usual: str = "uniform", visible: Sequence[float] | None = None
) -> tuple[int, ...]:
    """Return the chosen ones of `total` timesteps.

    `visible` [T] is how much of an image is left at each; if it is None, because only the number of timesteps matters,
    it is the same for all.
    """
    text = normal_timesteps(choice, usual)
    form, _, count = text.partition(":")
    typed = shortened(count if count and form in FORMS else text)  # who typed a number alone does not know of forms
    try:
        if "," in text:
            # A list that is too long is refused without reading its numbers.
            chosen = [] if text.count(",") > total else [int(one) for one in text.split(",") if one]
        elif not 1 <= (number := int(count)) <= total:
            raise ValueError
        elif form == "uniform":
            chosen = list(range(0, total, total // number))[:number]
        elif form == "cumulative":
            chosen = list(range(number))
        elif form == "visible":
            past, order = np.cumsum(np.ones(total) if visible is None else visible), np.arange(number)
            found = np.searchsorted(past / past[-1], (order + 0.5) / number)
            found = np.maximum.accumulate(found - order) + order  # different ones, also if there are nearly T of them
            chosen = np.minimum(found, total - number + order).tolist()
        else:
            raise ValueError
    except ValueError:
        raise UsageError(
            f"timesteps {typed}: give a number from 1 to {total}, visible:NUMBER, cumulative:NUMBER, or a list such as "
            "0,100,200"
        ) from None
    if not chosen or len(set(chosen)) < len(chosen) or min(chosen) < 0 or max(chosen) >= total:
        raise UsageError(f"timesteps {typed}: a list holds different numbers from 0 to {total - 1}")
    return tuple(chosen)


def timesteps_of(model: "DiffusionModel", choice: int | str, usual: str = "uniform") -> tuple[int, ...]:
    """Return the chosen timesteps of a model."""
    return select_timesteps(choice, model.process.timesteps, usual, model.process.visible.tolist())


@dataclass(frozen=True)
class Copies:
    """The noised copies that are made of each image: K timesteps with Z noises each."""

    timesteps: tuple[int, ...]
    draws: int = 1  # how many noises there are at each timestep
    noise: str = "shared"  # by all images; or "per-image"
    seed: int = 0

    def pairs(self) -> list[tuple[int, int]]:
        """Return (timestep, draw) of every copy."""
        return [(timestep, draw) for timestep in self.timesteps for draw in range(self.draws)]

    def noises(self, shape: tuple[int, ...], image: str | int | None = None) -> Tensor:
        """Return ε of every copy, [KZ, C, H, W]. It depends on seed, timestep and draw, and on an image's own name."""
        name = () if self.noise == "shared" else (f"image {image}",)
        return torch.stack([gaussian(shape, self.seed, timestep, draw, *name) for timestep, draw in self.pairs()])

    def probes(self, shape: tuple[int, ...], image: str | int) -> Tensor:
        """Return random directions v ~ N(0, I) of the output for every copy of an image, [KZ, C, H, W]."""
        return torch.stack([gaussian(shape, self.seed, t, draw, f"probe {image}") for t, draw in self.pairs()])
