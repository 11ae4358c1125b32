"""Find the images with the largest inner products of compressed vectors: by FAISS if it is installed, or by a scan.

With FAISS, each number of a vector has 8 bits, so that a million vectors are compared in some ten milliseconds.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.files import write_errors

ROWS_AT_ONCE = 1 << 14
FILE = "vectors.faiss"
SAMPLED = 50_000  # vectors that the ranges of the 8-bit numbers are taken from


def quantized(vectors: NDArray[np.float32], folder: Path) -> None:
    """Write vectors [N, m] with 8 bits a number, if FAISS is installed."""
    faiss = _faiss()
    if faiss is None:
        return
    found = faiss.IndexScalarQuantizer(vectors.shape[1], faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    found.train(np.ascontiguousarray(vectors[:: max(1, len(vectors) // SAMPLED)]))
    for _, block in _blocks(vectors):
        found.add(block)
    with write_errors(folder / FILE):
        (folder / FILE).write_bytes(faiss.serialize_index(found).tobytes())


class ShortList:
    """The compressed vectors of some images."""

    def __init__(self, folder: Path) -> None:
        self.vectors: NDArray[np.float32] = np.load(folder / "vectors.npy", mmap_mode="r", allow_pickle=False)
        faiss = _faiss()
        self._quantized: Any = None
        if faiss is not None and (folder / FILE).exists():
            self._quantized = faiss.read_index(str(folder / FILE), faiss.IO_FLAG_MMAP)

    def nearest(self, queries: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """Return the rows of the largest inner products with each query, [Q, count] in no order."""
        count = min(count, len(self.vectors))
        if self._quantized is not None:
            found: NDArray[np.int64] = self._quantized.search(np.ascontiguousarray(queries), count)[1]
            return found
        products = np.empty((len(queries), len(self.vectors)), dtype=np.float32)
        for rows, block in _blocks(self.vectors):
            products[:, rows] = queries @ block.T
        return np.argpartition(-products, count - 1, axis=1)[:, :count]


def _blocks(vectors: NDArray[np.float32]) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    for start in range(0, len(vectors), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        yield rows, np.ascontiguousarray(vectors[rows])


def _faiss() -> Any:
    try:
        import faiss
    except ModuleNotFoundError:
        return None
    return faiss
