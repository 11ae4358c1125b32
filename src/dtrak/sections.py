"""Sections of settings that are checked field by field, as recipes have them."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from dtrak.limits import MOST

Positive = Annotated[int, Field(gt=0, le=10**9)]
Seed = Annotated[int, Field(ge=0, le=MOST["seed"])]
Fraction = Annotated[float, Field(ge=0, le=1)]
Open = Annotated[float, Field(gt=0, lt=1)]


class Section(BaseModel):
    """Every field is checked, and none that is not known is taken."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def first_difference(there: Any, wanted: Any, name: str = "") -> tuple[str, Any, Any] | None:
    """Where two nested dictionaries differ first: ("training.epochs", 3, 4)."""
    if not isinstance(there, dict) or not isinstance(wanted, dict):
        return None if there == wanted else (name, there, wanted)
    for key in {**there, **wanted}:
        found = first_difference(there.get(key), wanted.get(key), f"{name}.{key}" if name else key)
        if found is not None:
            return found
    return None
