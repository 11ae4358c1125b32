"""Say what the preconditioners of feature stores depend on, and where they are kept: beside the stores, in kernels/."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from dtrak.features.store import FeatureStore
from dtrak.kernels import PRECONDITIONERS
from dtrak.kernels.copies import CopyFeatures
from dtrak.kernels.gram import Gram, fit_gram
from dtrak.kernels.kept import Fitted, KeptFit
from dtrak.kernels.pooled import PooledKernel, fit_pooled
from dtrak.kernels.preconditioner import Preconditioner
from dtrak.kernels.ridge import RidgeKernel, decompose

Fit = Callable[[], Preconditioner]
FOLDER = "kernels"


def kept_fit(preconditioner: str, store: FeatureStore) -> Fit:
    """Return the fit of a preconditioner to a store. Fits of other packages' preconditioners are not kept."""
    if preconditioner != "ridge":
        return partial(PRECONDITIONERS.choose(preconditioner), store)
    folder = store.folder.parent / FOLDER / f"ridge-{store.folder.name}"
    return KeptFit(folder, (store.digest,), partial(decompose, store), partial(RidgeKernel.opened, features=store))


def kept_gram(stores: Sequence[FeatureStore], features: CopyFeatures) -> KeptFit[Gram]:
    """Return the fit of the matrix G of all copies of all stores."""
    return _of_copies("gram", stores, features, partial(fit_gram, features), Gram.opened)


def kept_pooled(stores: Sequence[FeatureStore], features: CopyFeatures, scored: CopyFeatures) -> KeptFit[PooledKernel]:
    """Return the fit of one kernel to all copies of all stores. It does not depend on which features are scored."""
    fit = partial(fit_pooled, features, scored, kept_gram(stores, features))
    return _of_copies("pooled", stores, features, fit, partial(PooledKernel.opened, features=scored))


def _of_copies(
    kind: str,
    stores: Sequence[FeatureStore],
    features: CopyFeatures,
    fit: Callable[[], Fitted],
    opened: Callable[[Mapping[str, NDArray[Any]]], Fitted],
) -> KeptFit[Fitted]:
    length = "unit" if features.unit else "own"
    name = "-".join([kind, length, *(str(store.part["objective"]) for store in stores)])
    depends_on = (length, *(store.digest for store in stores))
    return KeptFit(stores[0].folder.parent / FOLDER / name, depends_on, fit, opened)
