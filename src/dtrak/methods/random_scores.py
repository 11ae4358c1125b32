"""Random scores. Every method has to be better than these."""

import numpy as np

from dtrak.inputs.arrays import Counts
from dtrak.inputs.pixels import Nothing
from dtrak.kernels.damping import Damping
from dtrak.methods.method import Method, Values
from dtrak.noise import stream


def random_scores(counts: Counts, damping: Damping) -> Values:
    """τ(x)_n ~ N(0, 1); the same seed gives the same scores."""
    return stream(counts.seed, "random").standard_normal((counts.queries, counts.train), dtype=np.float32)


RANDOM = Method("random", "random numbers, for comparison", Nothing(), random_scores)
