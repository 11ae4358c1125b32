"""The attribution methods by name. Each is a formula that gets arrays, never models.

To add a method, write a function in the file of its family, and add a line here.
"""

from collections.abc import Sequence

from dtrak.inputs.gradients import Gradients
from dtrak.inputs.needs import GradientKind, NeededGradients, needed_gradients
from dtrak.kernels.damping import Damping
from dtrak.methods.kernel import (
    D_TRAK,
    D_TRAK_ENSEMBLE,
    DAS,
    EK_FAC,
    JOURNEY_TRAK,
    JOURNEY_TRAK_ENSEMBLE,
    MIXED_TRAK,
    RELATIVE_IF,
    RENORMALIZED_IF,
    STEP_TRAK,
    TRAK,
    TRAK_ENSEMBLE,
)
from dtrak.methods.method import Method
from dtrak.methods.patches import NDA
from dtrak.methods.random_scores import RANDOM
from dtrak.methods.retraining import DATAMODEL, DATAMODEL_LASSO, EMPIRICAL_INFLUENCE
from dtrak.methods.similarity import (
    CLIP_COSINE,
    CLIP_DOT,
    GAS,
    GRADIENT_COSINE,
    GRADIENT_DOT,
    RAW_PIXEL_COSINE,
    RAW_PIXEL_DOT,
    RETRAC,
    TRACIN,
)
from dtrak.registry import Registry

_OWN = (
    RANDOM,
    RAW_PIXEL_DOT,
    RAW_PIXEL_COSINE,
    CLIP_DOT,
    CLIP_COSINE,
    NDA,
    GRADIENT_DOT,
    GRADIENT_COSINE,
    TRACIN,
    GAS,
    RETRAC,
    TRAK,
    D_TRAK,
    MIXED_TRAK,
    STEP_TRAK,
    RELATIVE_IF,
    RENORMALIZED_IF,
    EK_FAC,
    DAS,
    JOURNEY_TRAK,
    TRAK_ENSEMBLE,
    D_TRAK_ENSEMBLE,
    JOURNEY_TRAK_ENSEMBLE,
    EMPIRICAL_INFLUENCE,
    DATAMODEL,
    DATAMODEL_LASSO,
)
METHODS: Registry[Method] = Registry("method", "dtrak.methods", {method.name: method for method in _OWN})
EVERY_METHOD = "all"  # stands for all methods whose needs are met
RECOMMENDED = STEP_TRAK.name  # docs/results.md says why


def get_method(name: str) -> Method:
    """Return the method of that name; refuse an unknown one with the names that are known."""
    return METHODS.choose(name)


def split_methods(names: str | None, objective: str | None = None) -> list[str]:
    """Return the names in a text such as `trak,d-trak`, or `all`; refuse unknown methods.

    Without names, this is the recommended method, or d-trak if an objective is given, as it takes any.
    """
    if names is None:
        return [RECOMMENDED if objective is None else D_TRAK.name]
    if names.strip() == EVERY_METHOD:
        return [EVERY_METHOD]
    return list(dict.fromkeys(get_method(name.strip()).name for name in names.split(",")))


def chosen_methods(names: Sequence[str]) -> list[Method]:
    """Return the methods of these names; all methods if the only name is `all`."""
    return [*METHODS.values()] if list(names) == [EVERY_METHOD] else [get_method(name) for name in names]


def needed_by(
    methods: Sequence[Method], objective: str | None, damping: Damping | None
) -> dict[GradientKind, NeededGradients]:
    """Return the gradients that these methods need together, by kind. An objective is for methods that take any."""
    uses = [one.source.use(objective, one.damped) for one in methods if isinstance(one.source, Gradients)]
    return needed_gradients(uses, damping)


__all__ = [
    "EVERY_METHOD",
    "METHODS",
    "Method",
    "chosen_methods",
    "get_method",
    "needed_by",
    "split_methods",
]
