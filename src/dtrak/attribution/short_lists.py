"""Find the images with the largest inner products of compressed vectors: with FAISS if it is installed, or by a scan.

With FAISS, each two numbers of a vector have 4 bits together, and a million vectors are compared in milliseconds.
The vectors themselves then decide among the nearest. Without FAISS, all vectors are read.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.files import write_errors

ROWS_AT_ONCE = 1 << 14
FILE = "vectors.faiss"
LEAST = 10_000  # fewer vectors are scanned
SAMPLED = 30_000  # vectors that the pairs are taken from
CODED_TIMES = 5  # how many times the wanted images are taken by their codes


def code(vectors: NDArray[np.float32], folder: Path) -> None:
    """Write the codes of vectors [N, m], if FAISS is installed and they are many."""
    faiss, (count, numbers) = _faiss(), vectors.shape
    if faiss is None or count < LEAST or numbers % 2:
        return
    found = faiss.IndexPQFastScan(numbers, numbers // 2, 4, faiss.METRIC_INNER_PRODUCT)
    found.train(np.ascontiguousarray(vectors[:: max(1, count // SAMPLED)]))
    for _, block in _blocks(vectors):
        found.add(block)
    with write_errors(folder / FILE):
        (folder / FILE).write_bytes(faiss.serialize_index(found).tobytes())


class ShortList:
    """The compressed vectors of some images."""

    def __init__(self, folder: Path) -> None:
        self.vectors: NDArray[np.float32] = np.load(folder / "vectors.npy", mmap_mode="r", allow_pickle=False)
        faiss = _faiss()
        self._coded: Any = None
        if faiss is not None and (folder / FILE).exists():
            self._coded = faiss.read_index(str(folder / FILE))

    def nearest(self, queries: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """Return the rows of the largest inner products with each query, [Q, count] in no order."""
        count = min(count, len(self.vectors))
        if self._coded is not None:
            several = min(CODED_TIMES * count, len(self.vectors))
            coded = self._coded.search(np.ascontiguousarray(queries), several)[1]
            return np.stack([self._best(query, rows, count) for query, rows in zip(queries, coded, strict=True)])
        products = np.empty((len(queries), len(self.vectors)), dtype=np.float32)
        for rows, block in _blocks(self.vectors):
            products[:, rows] = queries @ block.T
        return np.argpartition(-products, count - 1, axis=1)[:, :count]

    def _best(self, query: NDArray[np.float32], rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Return those of the rows whose vectors have the largest products with a query."""
        rows = np.sort(rows)
        return rows[np.argpartition(-(self.vectors[rows] @ query), count - 1)[:count]]


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
