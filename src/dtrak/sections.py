"""The base class of the sections of a recipe, which are checked field by field, and what is wrong with a field."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dtrak.limits import MOST, shortened

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
