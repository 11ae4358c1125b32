"""What the error of LDS costs: the bootstrap over subsets for a whole grid of damping, beside loops that do the same.

    python benchmarks/lds.py

Random scores and losses. The loops are run on a slice, a few queries or resamples of one damping, and scaled: their
cost is linear in each. All three are compared on what they have in common. Memory is the process's peak beyond what it
held with the scores.
"""

import argparse
import resource
import time
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from scipy.stats import spearmanr

from dtrak.evaluation.lds import bootstrap, draw_subsets, mean_losses, predicted_losses, spearman
from dtrak.tables import Cell, Table

SLICE_QUERIES, SLICE_RESAMPLES = 50, 50  # of the loop over queries
SLICE_WIDE = 100  # resamples, of the loop over resamples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"dampings": 27, "queries": 1000, "images": 1000, "subsets": 64, "resamples": 1000}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    size = parser.parse_args()

    random = np.random.default_rng(0)
    values = random.standard_normal((size.dampings, size.queries, size.images), dtype=np.float32)
    masks = random.random((size.subsets, size.images)) < 0.5
    losses = random.standard_normal((size.subsets, 3, size.queries), dtype=np.float32)

    before = peak_bytes()
    seconds, means = timed(lambda: bootstrap(values, masks, losses, size.resamples))
    memory = peak_bytes() - before

    predicted, outputs = predicted_losses(values[0], masks), mean_losses(losses)
    picks = draw_subsets(size.subsets, size.resamples)
    wide = picks[:SLICE_WIDE]
    wide_seconds, by_query = timed(lambda: np.stack([spearman(predicted[:, pick], outputs[:, pick]) for pick in wide]))
    np.testing.assert_allclose(means[0, : len(wide)], 100 * by_query.mean(1), atol=1e-9)

    few = picks[:SLICE_RESAMPLES]
    pairs = list(zip(predicted, outputs, strict=True))[:SLICE_QUERIES]
    loop_seconds, one_by_one = timed(
        lambda: np.array([[spearmanr(a[pick], b[pick]).statistic for a, b in pairs] for pick in few])
    )
    np.testing.assert_allclose(one_by_one, by_query[: len(few), : len(pairs)], atol=1e-9)

    wide_total = wide_seconds * size.dampings * size.resamples / len(wide)
    loop_total = loop_seconds * size.dampings * size.resamples / len(few) * size.queries / len(pairs)
    table = Table(
        ["bootstrap", "seconds", "times dtrak's", "how"],
        [
            row("dtrak", seconds, seconds, f"run whole, {memory / 2**20:,.0f} MiB"),
            row("loop over resamples, all queries at once", wide_total, seconds, f"{wide_seconds:.2f} s, scaled"),
            row("loop over queries too, scipy.stats.spearmanr", loop_total, seconds, f"{loop_seconds:.2f} s, scaled"),
        ],
        f"{size.dampings} λ × {size.queries:,} queries × {size.subsets} subsets × {size.resamples:,} resamples, "
        f"{torch.get_num_threads()} threads",
    )
    Console().print(table)


def timed(work: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def row(name: str, seconds: float, dtraks: float, how: str) -> list[str | Cell]:
    return [name, Cell(seconds, f"{seconds:,.1f}"), Cell(seconds / dtraks, f"{seconds / dtraks:,.0f}"), how]


if __name__ == "__main__":
    main()
