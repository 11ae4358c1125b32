"""How features are made: every setting, declared once, with its limits and its help text."""

from dataclasses import dataclass, field
from typing import Any, Literal

from dtrak.errors import UsageError, choose
from dtrak.features.store import DTYPES
from dtrak.gradients.projections import PROJECTIONS


def setting(default: Any, metavar: str, help: str, *, shown: str | None = None, least: int | None = None) -> Any:
    """A field that the command line has an option for; help says `shown` where the default needs words."""
    return field(default=default, metadata={"metavar": metavar, "help": help, "shown": shown, "least": least})


@dataclass(frozen=True)
class FeatureSettings:
    """How features are made, objective aside."""

    timesteps: int | str = setting(10, "K", "K evenly spaced ones, cumulative:K, or a list 0,100,200.")
    draws: int = setting(1, "Z", "Noises at each timestep.", least=1)
    noise: Literal["shared", "per-image"] = setting("shared", "KIND", "shared by all images, or per-image.")
    projection: str = setting("sketch", "KIND", "sketch, dense, dense-rademacher or identity.")
    projection_dim: int = setting(4096, "N", "Numbers kept for each image.", least=1)
    parameters: str | None = setting(
        None,
        "PATTERN",
        "Only parameters whose name matches, e.g. 'up_blocks|conv_out', or all.",
        shown="the LoRA, or else all",
    )
    seed: int = setting(0, "SEED", "Of the noise and the projection.", least=0)
    projection_seed: int | None = None  # where the projection has its own
    dtype: str = setting("float32", "KIND", "Of features on disk: float32, float16, bfloat16.")
    autocast: bool = setting(False, "", "Forward passes in bfloat16.")
    batch_size: int | None = setting(None, "N", "Images that share a pass.", shown="by the model's size", least=1)
    skip_bad: bool = setting(False, "", "Leave out images whose gradient is not finite, instead of failing.")

    def __post_init__(self) -> None:
        PROJECTIONS.choose(self.projection)
        choose("noise", self.noise, ["shared", "per-image"])
        choose("dtype", self.dtype, list(DTYPES))
        for name in ("draws", "projection_dim", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name.replace('_', '-')} {value}: it must be at least 1")
        if self.seed < 0:
            raise UsageError(f"seed {self.seed}: it must not be negative")
