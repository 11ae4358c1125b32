"""The linear datamodelling score: do the scores of a subset's images add up to what a model trained on it does?

    LDS(x) = ρ( loss of x under the model trained on D_m,  −Σ_{n in D_m} τ(x)_n )        over random subsets D_1 … D_M

with Spearman's rank correlation ρ, in percent.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from dtrak.noise import stream

Floats = NDArray[np.float64]


def predicted_losses(values: NDArray[np.float32], masks: NDArray[np.bool_]) -> Floats:
    """−Σ of the scores [Q, N] of each subset's images [M, N]: [M, Q]."""
    losses: Floats = -(masks.astype(np.float64) @ values.T.astype(np.float64))
    return losses


def spearman(a: Floats, b: Floats) -> Floats:
    """Rank correlation over the first axis of [M, …] and [M, …], ties sharing their mean rank: […]."""
    a, b = (rankdata(values, axis=0) - (len(values) + 1) / 2 for values in (a, b))
    scale = np.sqrt((a**2).sum(0) * (b**2).sum(0))
    correlation: Floats = np.divide((a * b).sum(0), scale, out=np.zeros_like(scale), where=scale > 0)
    return correlation


def lds(values: NDArray[np.float32], masks: NDArray[np.bool_], losses: NDArray[np.float32]) -> Floats:
    """LDS in percent of each query, [Q], from scores [Q, N], masks [M, N] and losses [M, S, Q] of S seeds."""
    return 100 * spearman(predicted_losses(values, masks), losses.astype(np.float64).mean(1))


def bootstrap(
    values: NDArray[np.float32],
    masks: NDArray[np.bool_],
    losses: NDArray[np.float32],
    resamples: int = 200,
) -> Floats:
    """The mean LDS over queries, [resamples], each on M subsets drawn with replacement from the M there are."""
    predicted, outputs = predicted_losses(values, masks), losses.astype(np.float64).mean(1)
    picks = stream("bootstrap").integers(len(masks), size=(resamples, len(masks)))
    return np.array([100 * spearman(predicted[pick], outputs[pick]).mean() for pick in picks])
