"""What settings may say: the base of checked sections, bounds of numbers, and a refused value in one line."""

import reprlib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dtrak.errors import UsageError

SEED = 2**63 - 1  # the largest number of 64 bits with a sign
PICTURES = 10**6  # that are drawn or attributed

MOST: Mapping[str, int] = {
    "count": PICTURES,
    "validation": PICTURES,
    "generated": PICTURES,
    "pictures": PICTURES,
    "top": 10**6,  # images that are kept of each end of a query's scores
    "remove": 10**9,  # it is also compared with the number of images
    "draws": 10**6,
    "noises": 10**6,
    "num_train_timesteps": 10**5,
    "projection_dim": 2**20,
    "batch_size": 10**6,
    "subsets": 10**4,
    "seeds": 100,
    "checkpoint_count": 1000,
    "ensemble_size": 10**4,
    "retrained_count": 10**4,
    "size": 8192,  # pixels along a side
    "workers": 1024,
    "step": 10**5,
    "ddim_steps": 10**5,
    "seed": SEED,
    "first_seed": SEED - PICTURES,  # the pictures after the first have larger seeds
}


def check_number(name: str, value: object, least: int = 1) -> None:
    """Refuse a value that is not a whole number from `least` to `MOST[name]`."""
    given = f"{name.replace('_', '-')} {shortened(value)}"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise UsageError(f"{given}: it must be a whole number")
    number = int(value.__index__())
    if number < least:
        raise UsageError(f"{given}: it must {'be at least 1' if least else 'not be negative'}")
    if number > MOST[name]:
        raise UsageError(f"{given}: it must be at most {MOST[name]:,}")


def shortened(value: object) -> str:
    """Return a value as a short text; Python refuses to print numbers with thousands of digits."""
    try:
        text = reprlib.repr(value) if not isinstance(value, int) else str(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:40]}…"


Positive = Annotated[int, Field(gt=0, le=10**9)]
Seed = Annotated[int, Field(ge=0, le=MOST["seed"])]
Fraction = Annotated[float, Field(ge=0, le=1)]
OpenFraction = Annotated[float, Field(gt=0, lt=1)]


class Section(BaseModel):
    """A section of settings: every field is checked, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def first_mistake(error: ValidationError) -> str:
    """Return the first field that was refused, why, and its value: "rows: Input should be … (it says 'many')"."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']} (it says {shortened(first['input'])})"


def first_difference(found: Any, wanted: Any, name: str = "") -> tuple[str, Any, Any] | None:
    """Return the first entry in which two nested dictionaries differ, such as ("training.epochs", 3, 4)."""
    if not isinstance(found, dict) or not isinstance(wanted, dict):
        return None if found == wanted else (name, found, wanted)
    for key in {**found, **wanted}:
        difference = first_difference(found.get(key), wanted.get(key), f"{name}.{key}" if name else key)
        if difference is not None:
            return difference
    return None
