"""How features are made: every setting, declared once, with its default and its help text.

The command line makes its options from this file, so that it imports nothing that takes long.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from dtrak.errors import UsageError, check_known
from dtrak.limits import check_number, shortened

DEFAULT_ENCODER = "openai/clip-vit-base-patch32"


@dataclass(frozen=True)
class Option:
    """How the command line shows a setting: what it takes, what it is for, and its default where that needs words."""

    metavar: str
    help: str
    default: str | None = None
    least: int = 1  # of a whole number


@dataclass(frozen=True)
class FeatureSettings:
    """How features are made, objective aside."""

    timesteps: Annotated[int | str, Option("K", "K evenly spaced ones, middle:K, cumulative:K, or 0,100,200.")] = 10
    draws: Annotated[int, Option("Z", "Noises at each timestep.")] = 1
    noise: Annotated[Literal["shared", "per-image"], Option("KIND", "shared by all images, or per-image.")] = "shared"
    projection: Annotated[
        str | None,
        Option("KIND", "factored, sketch, dense, dense-rademacher or identity.", "factored for step-trak, else sketch"),
    ] = None
    projection_dim: Annotated[int, Option("N", "Numbers kept for each image, or for each copy.")] = 4096
    parameters: Annotated[
        str | None,
        Option(
            "PATTERN", "Only parameters whose name matches, e.g. 'up_blocks|conv_out'.", "those of the LoRA, or all"
        ),
    ] = None
    seed: Annotated[int, Option("SEED", "Of the noise and the projection.", least=0)] = 0
    projection_seed: int | None = None  # where the projection has its own
    dtype: Annotated[str, Option("KIND", "Of features on disk: float32, float16, bfloat16.")] = "float32"
    autocast: Annotated[bool, Option("", "Forward passes in bfloat16.")] = False
    batch_size: Annotated[int | None, Option("N", "Images that share a pass.", "by the model's size")] = None
    skip_bad: Annotated[bool, Option("", "Leave out images whose gradient is not finite, instead of failing.")] = False

    def __post_init__(self) -> None:
        from dtrak.features.store import DTYPES
        from dtrak.gradients.projecting import PROJECTIONS

        PROJECTIONS.choose(self.projection_of(apart=False))
        check_known("noise", self.noise, ["shared", "per-image"])
        check_known("dtype", self.dtype, list(DTYPES))
        for name in ("draws", "projection_dim", "batch_size"):
            if (value := getattr(self, name)) is not None or name != "batch_size":
                check_number(name, value)
        for seed in (self.seed, self.projection_seed):
            if seed is not None:
                check_number("seed", seed, 0)
        if self.parameters is not None:
            _check_pattern(self.parameters)

    def projection_of(self, apart: bool) -> str:
        """The kind of projection, where every noised copy of an image has its own row or all share one."""
        return self.projection or ("factored" if apart else "sketch")


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"the parameter pattern {shortened(pattern)} is not a regular expression: {error}") from None
