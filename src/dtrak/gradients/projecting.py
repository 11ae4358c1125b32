"""Choose a projection by its name."""

from collections.abc import Callable
from functools import partial

from dtrak.gradients.factored import Factored
from dtrak.gradients.projections import Dense, Identity, Projection, Shapes, Sketch
from dtrak.registry import Registry

# Each function takes k, the shapes of the parameters by name, and a seed.
PROJECTIONS: Registry[Callable[[int, Shapes, int], Projection]] = Registry(
    "projection",
    "dtrak.projections",
    {
        "sketch": Sketch,
        "factored": Factored,
        "dense": partial(Dense, entries="gaussian"),
        "dense-rademacher": partial(Dense, entries="rademacher"),
        "identity": Identity,
    },
)


def make_projection(kind: str, dim: int, shapes: Shapes, seed: int) -> Projection:
    """Return a projection of this kind to at most `dim` numbers; only `identity` ignores `dim` and keeps all."""
    return PROJECTIONS.choose(kind)(dim, shapes, seed)
