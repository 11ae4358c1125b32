"""The attribution methods by name. Each is a formula over shared parts and sees arrays, never models.

Adding one is a function in a file of its family and a line in `METHODS`.
"""

from collections.abc import Sequence

from dtrak.errors import choose
from dtrak.methods.control import RANDOM
from dtrak.methods.kernel import (
    D_TRAK,
    D_TRAK_ENSEMBLE,
    JOURNEY_TRAK,
    JOURNEY_TRAK_ENSEMBLE,
    MIXED_TRAK,
    RELATIVE_IF,
    RENORMALIZED_IF,
    TRAK,
    TRAK_ENSEMBLE,
)
from dtrak.methods.method import Gradients, Method
from dtrak.methods.retraining import DATAMODEL, DATAMODEL_LASSO, EMPIRICAL_INFLUENCE
from dtrak.methods.similarity import (
    CLIP_COSINE,
    CLIP_DOT,
    GAS,
    GRADIENT_COSINE,
    GRADIENT_DOT,
    RAW_PIXEL_COSINE,
    RAW_PIXEL_DOT,
    TRACIN,
)

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        RANDOM,
        RAW_PIXEL_DOT,
        RAW_PIXEL_COSINE,
        CLIP_DOT,
        CLIP_COSINE,
        GRADIENT_DOT,
        GRADIENT_COSINE,
        TRACIN,
        GAS,
        TRAK,
        D_TRAK,
        MIXED_TRAK,
        RELATIVE_IF,
        RENORMALIZED_IF,
        JOURNEY_TRAK,
        TRAK_ENSEMBLE,
        D_TRAK_ENSEMBLE,
        JOURNEY_TRAK_ENSEMBLE,
        EMPIRICAL_INFLUENCE,
        DATAMODEL,
        DATAMODEL_LASSO,
    )
}
ALL = "all"  # every method whose needs are met
RECOMMENDED = MIXED_TRAK.name  # it predicts best of those that retrain nothing: docs/results.md


def get_method(name: str) -> Method:
    choose("method", name, list(METHODS))
    return METHODS[name]


def split_methods(names: str | None, objective: str | None = None) -> list[str]:
    """`trak,d-trak` → its names, each of a known method, or `all`; without names, the recommended method, or the one
    that takes the objective asked for."""
    if names is None:
        return [RECOMMENDED if objective is None else D_TRAK.name]
    if names.strip() == ALL:
        return [ALL]
    return list(dict.fromkeys(get_method(name.strip()).name for name in names.split(",")))


def chosen_methods(names: Sequence[str]) -> list[Method]:
    """The methods of these names; `all` of them if that is the only one."""
    return [*METHODS.values()] if list(names) == [ALL] else [get_method(name) for name in names]


def objective_of(method: Method, asked: str | None = None) -> str | None:
    """The objective of a method's gradients: the one asked for where the method has the choice, or its own."""
    source = method.source
    if not isinstance(source, Gradients):
        return None
    return asked if asked is not None and source.any_objective else source.objective


def objectives_of(method: Method, asked: str | None = None) -> list[str]:
    """All objectives whose gradients a method needs, the one that λ is set for first; none if it needs no gradients."""
    source = method.source
    return [str(objective_of(method, asked)), *source.also] if isinstance(source, Gradients) else []


__all__ = [
    "ALL",
    "METHODS",
    "Method",
    "chosen_methods",
    "get_method",
    "objective_of",
    "objectives_of",
    "split_methods",
]
