"""The attribution methods by name. Each is a record with a formula that gets arrays, never models.

To add a method, write a function and its record in a file here, and add a line to `METHODS`.
"""

from collections.abc import Sequence

from dtrak.errors import UsageError
from dtrak.methods.method import Gradients, Kronecker, Method, Ridge
from dtrak.registry import Registry

METHODS: Registry[Method] = Registry(
    "method",
    "dtrak.methods",
    {
        "random": "dtrak.methods.random_scores:RANDOM",
        "raw-pixel-dot": "dtrak.methods.similarity:RAW_PIXEL_DOT",
        "raw-pixel-cosine": "dtrak.methods.similarity:RAW_PIXEL_COSINE",
        "clip-dot": "dtrak.methods.similarity:CLIP_DOT",
        "clip-cosine": "dtrak.methods.similarity:CLIP_COSINE",
        "nda": "dtrak.methods.nda:NDA",
        "gradient-dot": "dtrak.methods.similarity:GRADIENT_DOT",
        "gradient-cosine": "dtrak.methods.similarity:GRADIENT_COSINE",
        "tracin": "dtrak.methods.similarity:TRACIN",
        "gas": "dtrak.methods.similarity:GAS",
        "retrac": "dtrak.methods.similarity:RETRAC",
        "trak": "dtrak.methods.trak:TRAK",
        "d-trak": "dtrak.methods.d_trak:D_TRAK",
        "mixed-trak": "dtrak.methods.d_trak:MIXED_TRAK",
        "step-trak": "dtrak.methods.step_trak:STEP_TRAK",
        "relative-if": "dtrak.methods.trak:RELATIVE_IF",
        "renormalized-if": "dtrak.methods.trak:RENORMALIZED_IF",
        "ek-fac": "dtrak.methods.ek_fac:EK_FAC",
        "das": "dtrak.methods.das:DAS",
        "journey-trak": "dtrak.methods.trak:JOURNEY_TRAK",
        "trak-ensemble": "dtrak.methods.trak:TRAK_ENSEMBLE",
        "d-trak-ensemble": "dtrak.methods.d_trak:D_TRAK_ENSEMBLE",
        "journey-trak-ensemble": "dtrak.methods.trak:JOURNEY_TRAK_ENSEMBLE",
        "empirical-influence": "dtrak.methods.retrained_models:EMPIRICAL_INFLUENCE",
        "datamodel": "dtrak.methods.retrained_models:DATAMODEL",
        "datamodel-lasso": "dtrak.methods.retrained_models:DATAMODEL_LASSO",
    },
)
EVERY_METHOD = "all"  # stands for all methods whose needs are met
RECOMMENDED = "step-trak"  # docs/results.md says why


def split_methods(names: str | None, objective: str | None = None) -> list[str]:
    """Return the names in a text such as `trak,d-trak`, or `all`; refuse unknown methods.

    Without names, this is the recommended method, or d-trak if an objective is given, as it takes any.
    """
    if names is None:
        return [RECOMMENDED if objective is None else "d-trak"]
    if names.strip() == EVERY_METHOD:
        return [EVERY_METHOD]
    return list(dict.fromkeys(METHODS.choose(name.strip()).name for name in names.split(",")))


def chosen_methods(given: Sequence[str | Method]) -> list[Method]:
    """Return the methods that were given, by their names or as records; all methods if `all` alone was given.

    Names tell methods apart in files and tables, so two different ones cannot have the same.
    """
    if list(given) == [EVERY_METHOD]:
        return [*METHODS.values()]
    found: dict[str, Method] = {}
    for one in given:
        method = METHODS.choose(one) if isinstance(one, str) else one
        if not found.setdefault(method.name, method) == METHODS.get(method.name, method) == method:
            raise UsageError(f"there is another method called {method.name!r} already: give yours another name")
    return [*found.values()]


__all__ = ["EVERY_METHOD", "METHODS", "Gradients", "Kronecker", "Method", "Ridge", "chosen_methods", "split_methods"]
