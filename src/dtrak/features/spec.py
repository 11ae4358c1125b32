"""How features are made, in the normal form: two methods with equal specs share their stores and their passes."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from dtrak.fingerprints import of_object


@dataclass(frozen=True)
class Spec:
    """Everything that features depend on, beside the model, the images and the objective."""

    models: Literal["final", "checkpoints", "retrained"] = "final"
    copies: Literal["averaged", "apart"] = "averaged"  # apart: a row for every noised copy of an image
    timesteps: str = "uniform:10"  # or visible:10, cumulative:10, or a list such as 0,100,200
    layers: str = "usual"  # those of the LoRA, or all; later: of a U-Net from its middle on; or a pattern of names
    projection: str | Callable[..., Any] = "sketch"
    projection_dim: int = 4096  # 0 where nothing is projected
    draws: int = 1
    noise: str = "shared"
    seed: int = 0
    projection_seed: int | None = None  # None: that of the noise
    dtype: str = "float32"
    autocast: bool = False

    @property
    def facts(self) -> dict[str, Any]:
        """Return the spec as plain values."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            **found,
            "projection": self.projection if isinstance(self.projection, str) else of_object(self.projection),
        }
