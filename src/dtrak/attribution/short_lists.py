"""Find the images with the largest inner products of compressed vectors: with FAISS if it is installed, or by a scan.

With FAISS, each two numbers of a vector have 4 bits together, and a million vectors are compared in milliseconds.
The vectors themselves then decide among the nearest. Without FAISS, all vectors are read.
"""

import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.errors import DtrakError
from dtrak.files import write_errors

ROWS_AT_ONCE = 1 << 14
VECTORS, FILE = "vectors.npy", "vectors.faiss"
LEAST = 10_000  # fewer vectors are scanned
SAMPLED = 30_000  # vectors that the pairs are taken from
CODED_TIMES = 5  # how many times the wanted images are taken by their codes


class VectorFile:
    """The vectors [N, m] in a file. They are read and not mapped, so that the process does not grow with the file."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            np.lib.format.read_magic(file)
            (self.count, self.numbers), _, _ = np.lib.format.read_array_header_1_0(file)
            self._start = file.tell()
        self._path, self._file = path, os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def rows(self, first: int, count: int = 1) -> NDArray[np.float32]:
        """Return neighbouring rows, [count, m]."""
        size = 4 * self.numbers
        content = os.pread(self._file, size * count, self._start + size * first)
        return np.frombuffer(content, dtype="<f4").reshape(-1, self.numbers)

    def at(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return some rows, [b, m]."""
        found, size = np.empty((len(rows), self.numbers), dtype="<f4"), 4 * self.numbers
        for row, target in zip(rows.tolist(), found, strict=True):
            if os.preadv(self._file, [target.data], self._start + size * row) < size:
                raise DtrakError(f"{self._path} is damaged: make the index again with `dtrak index`")
        return found

    def blocks(self) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """Yield all rows in blocks."""
        for start in range(0, self.count, ROWS_AT_ONCE):
            block = self.rows(start, min(ROWS_AT_ONCE, self.count - start))
            yield slice(start, start + len(block)), block


def code(folder: Path) -> None:
    """Write the codes of the vectors of a folder, if FAISS is installed and they are many."""
    faiss, vectors = _faiss(), VectorFile(folder / VECTORS)
    if faiss is None or vectors.count < LEAST or vectors.numbers % 2:
        return
    found = faiss.IndexPQFastScan(vectors.numbers, vectors.numbers // 2, 4, faiss.METRIC_INNER_PRODUCT)
    found.train(vectors.at(np.arange(0, vectors.count, max(1, vectors.count // SAMPLED))))
    for _, block in vectors.blocks():
        found.add(block)
    with write_errors(folder / FILE):
        (folder / FILE).write_bytes(faiss.serialize_index(found).data)


class ShortList:
    """The compressed vectors of some images."""

    def __init__(self, folder: Path) -> None:
        self.vectors = VectorFile(folder / VECTORS)
        faiss = _faiss()
        self._coded: Any = None
        if faiss is not None and (folder / FILE).exists():
            self._coded = faiss.read_index(str(folder / FILE))

    def nearest(self, queries: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """Return the rows of the largest inner products with each query, [Q, count] in no order."""
        count = min(count, self.vectors.count)
        if self._coded is not None:
            several = min(CODED_TIMES * count, self.vectors.count)
            coded = self._coded.search(np.ascontiguousarray(queries), several)[1]
            return np.stack([self._best(query, rows, count) for query, rows in zip(queries, coded, strict=True)])
        products = np.empty((len(queries), self.vectors.count), dtype=np.float32)
        for rows, block in self.vectors.blocks():
            products[:, rows] = queries @ block.T
        return np.argpartition(-products, count - 1, axis=1)[:, :count]

    def _best(self, query: NDArray[np.float32], rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Return those of the rows whose vectors have the largest products with a query."""
        rows = np.sort(rows)
        return rows[np.argpartition(-(self.vectors.at(rows) @ query), count - 1)[:count]]


def _faiss() -> Any:
    try:
        import faiss
    except ModuleNotFoundError:
        return None
    return faiss
