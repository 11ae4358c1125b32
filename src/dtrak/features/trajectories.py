"""Sampling trajectories: the model's estimate of the picture at each step t, while DDIM draws it from its seed.

    x̂_0(x_t) = (x_t − √(1−ᾱ_t) ε_θ(x_t, t)) / √ᾱ_t

Journey-TRAK attributes these estimates: it takes the gradient of L_Simple at (x̂_0(x_t), t).
"""

import re
import reprlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dtrak.errors import UsageError
from dtrak.features.model_inputs import ModelInputs, hashes_of
from dtrak.images.images import Images
from dtrak.models import DiffusionModel
from dtrak.models.conditions import moved
from dtrak.models.sampling import sample
from dtrak.progress import say

SEED_TEXT = re.compile(r"[0-9]{1,19}(\.0)?")
SEED = "seed"  # the column of generated pictures that has their seeds
CLOSE = 2  # of 256 values of a pixel, on average: another machine may round so differently


@dataclass(frozen=True, eq=False)
class Trajectories:
    """The trajectories of generated pictures, with every step or only the one at timestep `step`."""

    model: DiffusionModel
    pictures: Images
    steps: int = 50  # of DDIM
    step: int | None = None
    guidance: float | None = None  # the strength of the conditions, if the model takes any

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def ids(self) -> NDArray[Any]:
        return self.pictures.ids

    @property
    def source(self) -> str:
        return self.pictures.source

    @cached_property
    def hashes(self) -> NDArray[np.void]:
        """Return 16 bytes for each picture, [N], that change with its pixels, its seed and its text."""
        of_each = zip(self.pictures.digests, seeds_of(self.pictures), self._texts or [""] * len(self), strict=True)
        return hashes_of(f"{digest.tobytes().hex()} {seed} {text}" for digest, seed, text in of_each)

    @cached_property
    def timesteps(self) -> tuple[int, ...]:
        """Return t of the steps that count, in falling order: all of them, or the one that is nearest to `step`.

        Stable Diffusion passes through 401 and 301, and not through 400 and 300.
        """
        every = tuple(self.model.solver(self.steps).timesteps.tolist())
        if self.step is None:
            return every
        passed = f"{self.steps} steps of DDIM pass through {', '.join(map(str, every[:2]))}, … {every[-1]}"
        if self.step >= self.model.process.timesteps:
            raise UsageError(f"step {self.step}: {passed}")
        nearest = min(every, key=lambda t: abs(t - self.step))
        if nearest != self.step:
            say(f"step {self.step}: {passed}; {nearest} is taken, which is the nearest")
        return (nearest,)

    @cached_property
    def _texts(self) -> list[str] | None:
        return None if self.model.conditions is None else self.model.conditions.texts(self.pictures)

    @cached_property
    def inputs(self) -> ModelInputs:
        """Draw the pictures again. Their x̂_0 [N, timesteps, C, H, W] take the place of the modes of latents.

        Pictures that the model did not draw from their seeds are refused.
        """
        model, seeds, texts = self.model, seeds_of(self.pictures), self._texts
        drawn = sample(model, seeds, self.steps, trajectory=True, prompts=texts, guidance=self.guidance)
        row = not_as_drawn(self.pictures, drawn.pictures.cpu())
        if row is not None:
            raise UsageError(
                f"{self.ids[row]} of {self.source} is not what {model.source} draws from seed {seeds[row]} in "
                f"{self.steps} steps"
            )
        assert drawn.estimates is not None
        counting = [index for index, t in enumerate(drawn.timesteps.tolist()) if t in self.timesteps]
        estimates = drawn.estimates[counting].transpose(0, 1).cpu()
        if texts is None or model.conditions is None:
            return ModelInputs(self.pictures, (estimates[:, None],))
        conditions = moved(model.conditions.encode(texts), torch.device("cpu"))
        return ModelInputs(self.pictures, (estimates[:, None],), texts, conditions, np.arange(len(self)))

    def check(self) -> None:
        """Refuse steps or pictures that do not belong to their trajectories."""
        _ = self.timesteps, self.inputs


def seeds_of(pictures: Images) -> list[int]:
    """Return the seed of each picture."""
    column = pictures.columns.get(SEED)
    if column is None:
        raise UsageError(
            f"journey-trak follows how a picture was drawn, but {pictures.source} has no column {SEED!r} with "
            "their seeds: take pictures that `dtrak generate` made"
        )
    for id_, seed in zip(pictures.ids, column.tolist(), strict=True):
        if not SEED_TEXT.fullmatch(str(seed)):
            said = reprlib.repr(seed)
            raise UsageError(f"the seed of {id_} of {pictures.source} is {said}: it must be a whole number from 0 on")
    return [int(str(seed).removesuffix(".0")) for seed in column]


def not_as_drawn(pictures: Images, drawn: Tensor) -> int | None:
    """Return the row of a picture that differs from the one drawn now [B, C, H, W] by more than rounding, or None."""
    apart = 127.5 * (drawn - pictures.tensor(range(len(pictures)))).abs().flatten(1).mean(1)
    worst = int(apart.argmax())
    return worst if apart[worst] > CLOSE else None
