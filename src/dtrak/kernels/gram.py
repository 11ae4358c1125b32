"""The matrix of a kernel of noised copies, gathered from the features of all copies of the training images:

    G = Σ_n Σ_c φ_c(n) φ_c(n)ᵀ        [k, k]

Features are read in blocks, so the memory does not grow with the number of images. Products are float32 and their sums
float64: on digits and CIFAR-2 this changes scores by less than a thousandth of their spread.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import ssyrk
from scipy.linalg.lapack import dtpttr, dtrttp

from dtrak.errors import DtrakError
from dtrak.kernels.copies import CopyFeatures
from dtrak.kernels.preconditioner import Array


@dataclass(frozen=True, eq=False)
class Gram:
    """G, of which only the lower half is kept."""

    packed: Array  # the columns of the lower half, one after the other, [k (k + 1) / 2]
    images: int  # how many training images have a feature; images that were left out have zeros and do not count

    @classmethod
    def opened(cls, arrays: Mapping[str, NDArray[Any]]) -> "Gram":
        """Return the matrix of the arrays that `arrays` gave."""
        return cls(arrays["packed"], int(arrays["images"]))

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"packed": self.packed, "images": np.array(self.images)}

    @property
    def dim(self) -> int:
        """Return k."""
        return int(np.sqrt(2 * len(self.packed)))

    @property
    def trace(self) -> float:
        """Return the sum of G's diagonal, which is the sum of its eigenvalues."""
        lengths = np.arange(self.dim, 0, -1)  # of the columns
        return float(self.packed[np.cumsum(lengths) - lengths].sum())

    def lower(self) -> Array:
        """Return a matrix [k, k], in Fortran's order, whose lower half is that of G."""
        return np.asarray(dtpttr(self.dim, self.packed, uplo="L")[0])


def fit_gram(features: CopyFeatures) -> Gram:
    """Read the features of every copy in blocks, and add up G."""
    total, images = np.zeros((features.dim, features.dim), order="F"), 0
    for rows in features.many_rows():
        total += ssyrk(1.0, rows.flatten(0, 1).numpy().T, lower=1)
        images += int(rows.flatten(1).any(1).sum())
    if not images:
        raise DtrakError("every training feature is zero: the objective does not depend on these parameters")
    return Gram(dtrttp(total, uplo="L")[0], images)
