"""The settings of features. Each is declared once, with its type, its default and its help text.

The command line makes its options from this file, so this file imports nothing that takes long.
"""

import re
from dataclasses import dataclass
from typing import Annotated

from dtrak.checks import check_number, shortened
from dtrak.errors import UsageError, check_known

DEFAULT_ENCODER = "openai/clip-vit-base-patch32"


@dataclass(frozen=True)
class Option:
    """How the command line shows a setting: its values, its help text, and its default if that needs words."""

    metavar: str
    help: str
    default: str | None = None
    least: int = 1  # the smallest whole number that it takes


@dataclass(frozen=True)
class FeatureSettings:
    """All settings of features, except the objective."""

    timesteps: Annotated[
        int | str, Option("K", "K timesteps, or visible:K, uniform:K, cumulative:K, or a list such as 0,100,200.")
    ] = 10
    draws: Annotated[int, Option("Z", "The number of noises at each timestep.")] = 1
    noise: Annotated[str, Option("KIND", "Noise shared by all images, or per-image.")] = "shared"
    projection: Annotated[
        str | None,
        Option(
            "KIND",
            "factored, sketch, dense or identity.",
            "factored for methods of every copy, else sketch",
        ),
    ] = None
    projection_dim: Annotated[int, Option("N", "How many numbers are kept for each image, or for each copy.")] = 4096
    parameters: Annotated[
        str | None,
        Option(
            "PATTERN",
            "Use only parameters whose name matches, e.g. 'up_blocks|conv_out', or all.",
            "those of the LoRA, or all; for step-trak, a U-Net's later layers",
        ),
    ] = None
    seed: Annotated[int, Option("SEED", "The seed of the noise and of the projection.", least=0)] = 0
    projection_seed: int | None = None  # if the projection has a seed of its own
    dtype: Annotated[str, Option("KIND", "How features are stored: float32, float16 or bfloat16.")] = "float32"
    autocast: Annotated[bool, Option("", "Compute forward passes in bfloat16.")] = False
    batch_size: Annotated[int | None, Option("N", "How many images share a pass.", "by the model's size")] = None
    skip_bad: Annotated[bool, Option("", "Leave out images whose gradient is not finite, instead of failing.")] = False

    def __post_init__(self) -> None:
        from dtrak.features.store import DTYPES
        from dtrak.gradients.copies import NOISES
        from dtrak.gradients.projections import PROJECTIONS

        if isinstance(self.timesteps, list | tuple):  # as Python code gives them
            object.__setattr__(self, "timesteps", "".join(f"{one}," for one in self.timesteps))
        PROJECTIONS.choose(self.projection_of(apart=False))
        check_known("noise", self.noise, NOISES)
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
        """Return the kind of projection, if every noised copy has its own row (`apart`), or if copies are averaged."""
        return self.projection or ("factored" if apart else "sketch")


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"the parameter pattern {shortened(pattern)} is not a regular expression: {error}") from None
