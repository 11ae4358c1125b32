"""Say what the preconditioners of feature stores depend on, and where they are kept: beside the stores, in kernels/."""

from collections.abc import Callable, Sequence
from functools import partial

from dtrak.features.store import FeatureStore
from dtrak.kernels import PRECONDITIONERS
from dtrak.kernels.copies import CopyFeatures
from dtrak.kernels.kept import KeptFit
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


def kept_pooled(stores: Sequence[FeatureStore], features: CopyFeatures, scored: CopyFeatures) -> KeptFit:
    """Return the fit of one kernel to all copies of all stores. It does not depend on which features are scored."""
    length = "unit" if features.unit else "own"
    name = "-".join(["pooled", length, *(store.manifest.objective for store in stores)])
    return KeptFit(
        stores[0].folder.parent / FOLDER / name,
        (length, *(store.digest for store in stores)),
        partial(fit_pooled, features, scored),
        partial(PooledKernel.opened, features=scored),
    )
