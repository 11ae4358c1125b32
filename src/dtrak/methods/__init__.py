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
Methods = str | Method | Sequence[str | Method]  # names with commas between them, records, or several of these
EVERY_METHOD = "all"  # stands for all methods whose needs are met
RECOMMENDED = "step-trak"  # docs/results.md says why


def chosen_methods(given: Methods | None, objective: object = None) -> tuple[Method, ...]:
    """Return the methods of names such as "trak,d-trak" or "all", of records, or of several of these.

    Without any, this is the recommended method, or d-trak if an objective is given, as it takes any. Names tell methods
    apart in files and tables, so two different ones cannot have the same.
    """
    if given is None:
        given = RECOMMENDED if objective is None else "d-trak"
    if isinstance(given, str):
        given = [name.strip() for name in given.split(",")]
    several = [given] if isinstance(given, Method) else [*given]
    if several == [EVERY_METHOD]:
        return tuple(METHODS.values())
    found: dict[str, Method] = {}
    for one in several:
        method = METHODS.choose(one) if isinstance(one, str) else one
        if not found.setdefault(method.name, method) == METHODS.get(method.name, method) == method:
            raise UsageError(f"there is another method called {method.name!r} already: give yours another name")
    return tuple(found.values())


__all__ = ["EVERY_METHOD", "METHODS", "Gradients", "Kronecker", "Method", "Ridge", "chosen_methods"]
