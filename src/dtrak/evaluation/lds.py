"""The linear datamodelling score (LDS): do summed scores predict the losses of models that are trained on subsets?

    LDS(x) = ρ( loss of x under the model trained on D_m,  −Σ_{n in D_m} τ(x)_n )        over random subsets D_1 … D_M

with Spearman's rank correlation ρ, in percent. The loss is the mean over S training seeds. Correlations are taken over
the last axis, which is that of the M subsets.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from dtrak.devices import threads_for
from dtrak.noise import stream

ROWS = 256  # rows of scores that are converted to float64 at a time
BLOCK = 2**18  # numbers in an array of the bootstrap, so that it fits into a core's cache

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LDS:
    """The LDS in percent. The error is that of the mean over queries, from a bootstrap over subsets."""

    per_query: Floats  # [Q]
    bootstrap_mean: float
    bootstrap_std: float
    low: float  # of the 95 % interval
    high: float

    @property
    def mean(self) -> float:
        """Return the mean over queries."""
        return float(self.per_query.mean())


def evaluate_lds(
    values: NDArray[np.float32], masks: NDArray[np.bool_], losses: NDArray[np.float32], resamples: int = 1000
) -> LDS:
    """Return the LDS and its error, from scores [Q, N], masks [M, N] and losses [M, S, Q].

    Here, each of two images is in some of the subsets, and training on the first one lowers the query's loss:

    >>> import numpy as np
    >>> from dtrak.evaluation import evaluate_lds
    >>> masks = np.array([[True, False], [False, True], [True, True], [False, False]])
    >>> losses = np.array([1.0, 2.1, 0.9, 2.0])[:, None, None]  # [4 subsets, 1 seed, 1 query]
    >>> scores = np.array([[1.0, 0.1]])  # [1 query, 2 images]
    >>> round(evaluate_lds(scores, masks, losses).mean)
    80
    """
    means = bootstrap(values, masks, losses, resamples)
    low, high = np.percentile(means, [2.5, 97.5])
    return LDS(lds(values, masks, losses), float(means.mean()), float(means.std()), float(low), float(high))


def mean_lds(values: NDArray[np.float32], masks: NDArray[np.bool_], losses: NDArray[np.float32]) -> float:
    """Return the mean LDS over queries, from scores [Q, N], masks [M, N] and losses [M, S, Q]."""
    return float(lds(values, masks, losses).mean())


def lds(values: NDArray[np.float32], masks: NDArray[np.bool_], losses: NDArray[np.float32]) -> Floats:
    """Return the LDS of each query, […, Q], from scores […, Q, N], masks [M, N] and losses [M, S, Q].

    Here, each of two images is in some of the subsets, and training on the first one lowers the query's loss:

    >>> import numpy as np
    >>> from dtrak.evaluation import lds
    >>> masks = np.array([[True, False], [False, True], [True, True], [False, False]])
    >>> losses = np.array([1.0, 2.1, 0.9, 2.0])[:, None, None]  # [4 subsets, 1 seed, 1 query]
    >>> scores = np.array([[1.0, 0.1]])  # [1 query, 2 images]
    >>> lds(scores, masks, losses)
    array([80.])
    """
    return 100 * spearman(predicted_losses(values, masks), mean_losses(losses))


def ceiling(losses: NDArray[np.float32]) -> float | None:
    """Return the noise ceiling of the LDS in percent, from losses [M, S, Q]; None if there is only one seed.

    It is the mean over seeds s and queries of ρ( losses of s, mean of the other seeds' losses ).
    """
    seeds = losses.shape[1]
    if seeds == 1:
        return None
    agreements = [
        spearman(mean_losses(losses[:, [seed]]), mean_losses(np.delete(losses, seed, axis=1))) for seed in range(seeds)
    ]
    return 100 * float(np.mean(agreements))


def perfect_lds(ceiling: float | None, seeds: int) -> float | None:
    """Return the LDS that scores would reach which predict the expected losses exactly; None if it is unknown.

    The ceiling a correlates one seed with the mean of the other m = S − 1. If ρ is the share of a seed's variance that
    is not noise, a = ρ / √(ρ + (1 − ρ)/m). The mean over S seeds then has the reliability ρ_S = Sρ / (1 + (S − 1)ρ)
    (Spearman and Brown), and perfect scores correlate with it as √ρ_S.
    """
    if ceiling is None or seeds < 2 or ceiling <= 0:
        return None
    square, others = (ceiling / 100) ** 2, seeds - 1
    half = square * (1 - 1 / others) / 2
    share = min(1.0, half + np.sqrt(half**2 + square / others))
    return 100 * float(np.sqrt(seeds * share / (1 + others * share)))


def predicted_losses(values: NDArray[np.float32], masks: NDArray[np.bool_]) -> Floats:
    """Return −Σ of the scores […, Q, N] over the images of each subset, masks [M, N]: […, Q, M]."""
    chosen = masks.T.astype(np.float64)
    rows = values.reshape(-1, values.shape[-1])
    sums = [rows[start : start + ROWS].astype(np.float64) @ chosen for start in range(0, len(rows), ROWS)]
    return -np.concatenate(sums).reshape(*values.shape[:-1], len(masks))


def mean_losses(losses: NDArray[np.float32]) -> Floats:
    """Return the mean over seeds of losses [M, S, Q]: [Q, M]."""
    means: Floats = losses.astype(np.float64).mean(1).T
    return means


def spearman(a: Floats, b: Floats) -> Floats:
    """Return the rank correlation […] over the last axis of […, M] and […, M]; equal values share their mean rank.

    The correlation is zero if one of the two is constant.
    """
    a, b = (rankdata(values, axis=-1) - (values.shape[-1] + 1) / 2 for values in (a, b))
    return _ratio((a * b).sum(-1), (a**2).sum(-1) * (b**2).sum(-1))


def bootstrap(
    values: NDArray[np.float32], masks: NDArray[np.bool_], losses: NDArray[np.float32], resamples: int = 1000
) -> Floats:
    """Return the mean LDS over queries, […, resamples], from scores […, Q, N], masks [M, N] and losses [M, S, Q].

    For each resample, M of the M subsets are drawn with replacement, the same for all queries and scores.

    Here, each of two images is in some of the subsets, and training on the first one lowers the query's loss:

    >>> import numpy as np
    >>> from dtrak.evaluation import bootstrap
    >>> masks = np.array([[True, False], [False, True], [True, True], [False, False]])
    >>> losses = np.array([1.0, 2.1, 0.9, 2.0])[:, None, None]  # [4 subsets, 1 seed, 1 query]
    >>> scores = np.array([[1.0, 0.1]])  # [1 query, 2 images]
    >>> bootstrap(scores, masks, losses, resamples=50).shape
    (50,)
    """
    picks = draw_subsets(len(masks), resamples)
    return 100 * resampled_spearman(predicted_losses(values, masks), mean_losses(losses), picks)


def draw_subsets(subsets: int, resamples: int) -> NDArray[np.int64]:
    """Draw the subsets of each resample, [resamples, M]; the same arguments always give the same draws."""
    return stream("bootstrap").integers(subsets, size=(resamples, subsets))


def resampled_spearman(a: Floats, b: Floats, picks: NDArray[np.int64]) -> Floats:
    """Return the mean over Q of `spearman` of a […, Q, M] and b [Q, M] at each row of picks [R, M]: […, R].

    When subset i is drawn c_i times, the ranks less their mean are, with any ties,

        r_i − r̄ = ½ Σ_j c_j sign(a_i − a_j)

    which is one matrix product for all resamples, of whole numbers; covariances are sums over i weighted by c_i.
    """
    queries, subsets = b.shape
    counts = torch.from_numpy(np.stack([np.bincount(pick, minlength=subsets) for pick in picks], axis=1)).float()
    # Ranks are ordered as the values are, and ranks of infinite values can be subtracted.
    a_ranks, b_ranks = (torch.from_numpy(rankdata(values, axis=-1)).float() for values in (a, b))
    grid = a_ranks.reshape(-1, queries, subsets)

    def total(start: int) -> Floats:
        """Return the sum over a block of queries, [L, R] for a grid [L, Q, M]."""
        block = slice(start, start + step)
        b_centred = _centred(b_ranks[block], counts)
        weighted = b_centred * counts
        b_variance = (b_centred * weighted).sum(1).double()
        totals = []
        for ranks in grid:
            a_centred = _centred(ranks[block], counts)
            covariance = (a_centred * weighted).sum(1).double()
            a_variance = a_centred.square_().mul_(counts).sum(1).double()
            totals.append(_ratio(covariance.numpy(), (a_variance * b_variance).numpy()).sum(0))
        return np.stack(totals)

    step = max(1, BLOCK // counts.numel())
    workers = torch.get_num_threads()
    # One thread for each block is faster than all threads on each small operation.
    with threads_for(0), ThreadPoolExecutor(workers) as pool:
        means: Floats = sum(pool.map(total, range(0, queries, step))) / queries
    return means.reshape(*a.shape[:-2], len(picks))


def _centred(ranks: Tensor, counts: Tensor) -> Tensor:
    """Return 2(r − r̄), [B, M, R], of values with ranks [B, M], each of which occurs as often as counts [M, R] say."""
    # Different ranks differ by at least 1, so the clamped difference is its sign; torch.sign would turn NaN into 0.
    return (ranks[:, :, None] - ranks[:, None, :]).clamp_(-1, 1) @ counts


def _ratio(covariance: Floats, variances: Floats) -> Floats:
    """Divide the covariance by the root of the product of variances; zero if a variance is zero, NaN if one is NaN."""
    ratio: Floats = np.divide(covariance, np.sqrt(variances), out=np.zeros_like(variances), where=variances != 0)
    return ratio
