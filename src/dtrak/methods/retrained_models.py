"""Methods that use retrained models instead of gradients: they compare a query's loss with and without an image."""

import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LassoCV, RidgeCV

from dtrak.contracts import Array, RetrainedLosses, Values
from dtrak.errors import UsageError
from dtrak.methods.method import Method, Outcomes
from dtrak.progress import progress_bar

FEWEST_MODELS = 4  # a comparison needs at least this many
STRENGTHS = np.logspace(-2, 5, 22)  # that ridge regression tries; the columns of masks have a variance of ¼


def check_enough(outcomes: RetrainedLosses) -> None:
    """Refuse to compare too few models."""
    found = len(outcomes.masks)
    if found < FEWEST_MODELS:
        raise UsageError(f"{found} retrained models are too few to compare: there must be at least {FEWEST_MODELS}")


def empirical_influence(outcomes: RetrainedLosses, damping: float) -> Values:
    """τ(x)_n = mean loss of x over models trained without n − mean loss over models trained with n."""
    check_enough(outcomes)
    masks = outcomes.masks.astype(np.float64)
    losses = outcomes.losses.astype(np.float64)
    with_it = losses.T @ masks / masks.sum(0).clip(min=1)
    without = losses.T @ (1 - masks) / (1 - masks).sum(0).clip(min=1)
    always_or_never = masks.all(0) | ~masks.any(0)  # then there is nothing to compare
    return np.where(always_or_never, 0, without - with_it).astype(np.float32)


def datamodel(outcomes: RetrainedLosses, damping: float) -> Values:
    """τ(x) = −w of the ridge regression  loss(x) ≈ w·mask + c.  Leave-one-out chooses its strength for each query."""
    check_enough(outcomes)
    fitted = RidgeCV(STRENGTHS, alpha_per_target=True).fit(*_regression(outcomes))
    return np.asarray(-fitted.coef_.reshape(outcomes.losses.shape[1], -1), dtype=np.float32)


def datamodel_lasso(outcomes: RetrainedLosses, damping: float) -> Values:
    """τ(x) = −w of the lasso  loss(x) ≈ w·mask + c.  Cross-validation chooses its strength for each query."""
    check_enough(outcomes)
    masks, losses = _regression(outcomes)
    folds = min(5, len(masks))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it comes from strengths that are not chosen
        with progress_bar("lasso", losses.shape[1], "queries") as advance:
            advance(0)
            fits = []
            for of_query in losses.T:
                fits.append(LassoCV(cv=folds).fit(masks, of_query).coef_)
                advance(1)
    return -np.stack(fits).astype(np.float32)


def _regression(outcomes: RetrainedLosses) -> tuple[Array, Array]:
    return outcomes.masks.astype(np.float64), outcomes.losses.astype(np.float64)


EMPIRICAL_INFLUENCE = Method(
    "empirical-influence", "mean loss without the image − mean loss with it", Outcomes(), empirical_influence
)
DATAMODEL = Method(
    "datamodel", "ridge regression of the loss on which images were in the training set", Outcomes(), datamodel
)
DATAMODEL_LASSO = Method("datamodel-lasso", "the same with the lasso", Outcomes(), datamodel_lasso)
