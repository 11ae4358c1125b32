"""The settings of a U-Net in a recipe: all settings of diffusers' UNet2DModel, with limits for their numbers.

With numbers outside these limits, diffusers would divide by zero or take hours to build the network.
"""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

from dtrak.checks import MOST, shortened

Channels = Annotated[int, Field(gt=0, le=MOST["channels"])]
Names = Annotated[list[str], Field(min_length=1, max_length=MOST["blocks"])]


class CheckedSettings(BaseModel):
    """The settings whose values are checked one by one; diffusers' defaults are used for those that are not given."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, JsonValue]

    block_out_channels: Annotated[list[Channels], Field(min_length=1, max_length=MOST["blocks"])] = []
    down_block_types: Names = []
    up_block_types: Names = []
    layers_per_block: Annotated[int, Field(gt=0, le=MOST["layers_per_block"])] = 1
    norm_num_groups: Channels = 1
    attention_head_dim: Channels | None = None
    attn_norm_num_groups: Channels | None = None
    time_embedding_dim: Channels | None = None
    downsample_padding: Annotated[int, Field(ge=0, le=16)] = 0
    mid_block_scale_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    norm_eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0


def _checked(unet: dict[str, Any]) -> dict[str, Any]:
    """Return the settings unchanged; refuse numbers with which no U-Net can be built."""
    CheckedSettings.model_validate(unet)
    for name, number in _numbers(unet, ""):
        if abs(number) > MOST["channels"]:
            raise ValueError(
                f"model.unet.{name}: it must be at most {MOST['channels']:,} (it says {shortened(number)})"
            )
    return unet


def _numbers(value: Any, name: str) -> Iterator[tuple[str, int]]:
    """Yield every whole number in nested settings, with its name."""
    match value:
        case int():
            yield name, value
        case dict() | list():
            for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
                yield from _numbers(inner, f"{name}.{key}" if name else str(key))


UNet = Annotated[dict[str, Any], AfterValidator(_checked)]
