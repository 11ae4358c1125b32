"""Random scores. Every method has to be better than these."""

import numpy as np

from dtrak.contracts import Counts, Values
from dtrak.methods.method import Method, Nothing
from dtrak.noise import stream


def random_scores(counts: Counts, damping: float) -> Values:
    """τ(x)_n ~ N(0, 1); the same seed gives the same scores."""
    return stream(counts.seed, "random").standard_normal((counts.queries, counts.train), dtype=np.float32)


RANDOM = Method("random", "random numbers, for comparison", Nothing(), random_scores)
