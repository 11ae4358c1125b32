"""Every λ at the price of one: time and memory of the whole grid of dampings, beside one explicit inverse for each.

    python benchmarks/kernels.py                 # N = 5,000, k = 32,768, 1,000 queries, 27 dampings
    python benchmarks/kernels.py --primal        # N = 50,000, k = 4,096
    python benchmarks/kernels.py --copies 10     # N = 5,000, k = 8,192, every one of ten copies, one pooled kernel

Features are random numbers with the falling spectrum that gradients have, in a store on disk. Each row is a process of
its own, so that its peak of memory is its own. The paper's code inverts ΦᵀΦ + λI anew for every λ; that is timed at a
smaller k and scaled by k³ for the inverse and by k² for the products, as the table says.
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from dtrak.features.store import FeatureStore
from dtrak.kernels.damping import GRIDS, Damping
from dtrak.kernels.ridge import Ridge
from dtrak.kernels.rows import CopyRows

SMALLER = 2048  # the k at which the explicit inverse is timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--primal", action="store_true", help="N = 50,000 and k = 4,096 instead")
    parser.add_argument("--copies", type=int, help="features of so many copies of each image, k = 8,192")
    parser.add_argument("--train", type=int, help="N")
    parser.add_argument("--dim", type=int, help="k")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="keep the features here; a temporary folder otherwise")
    arguments = parser.parse_args()
    train = arguments.train or (50_000 if arguments.primal else 5_000)
    dim = arguments.dim or (4_096 if arguments.primal else 8_192 if arguments.copies else 32_768)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)) / f"{train}-{arguments.copies or 1}-{dim}"
        in_process(make_store, folder, train, arguments.copies, dim)
        table = Table("way", "seconds", "peak memory above start, MB", "said of it")
        ways = (
            {"Cholesky factor, one λ": one_damping} if arguments.copies else {"eigendecomposition, one λ": one_of_many}
        )
        ways |= {"eigendecomposition, the 17 λ of --damping best": default_grid}
        ways |= {"eigendecomposition, the paper's 27 λ": paper_grid}
        for name, way in ways.items():
            parts, peak = in_process(way, folder, arguments.queries)
            spent = ", ".join(f"{part} {seconds:.0f}" for part, seconds in parts.items())
            table.add_row(name, f"{sum(parts.values()):.0f}", f"{peak:,.0f}", spent)
        if not arguments.copies:
            (inverse, products), peak = in_process(explicit_inverse, folder, arguments.queries, min(SMALLER, dim))
            factor = dim / min(SMALLER, dim)
            scaled = 27 * (inverse * factor**3 + products * factor**2)
            said = f"timed at k = {min(SMALLER, dim):,} ({inverse + products:.1f} s for one λ), scaled to {dim:,}"
            table.add_row("explicit inverse for each λ, the paper's grid", f"{scaled:,.0f}", "–", said)
        rows = f"N = {train:,}" + f" × {arguments.copies} copies" * bool(arguments.copies)
        Console(width=140).print(f"{rows}, k = {dim:,}, {arguments.queries:,} queries", table)


def in_process(work, *arguments):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def make_store(folder: Path, train: int, copies: int | None, dim: int) -> None:
    shape = (dim,) if copies is None else (copies, dim)
    store = FeatureStore.create(folder / "train", {"rows": train, "shape": shape}, train, shape)
    scale = torch.arange(1, dim + 1) ** -0.75
    for index in store.missing():
        random = torch.Generator().manual_seed(index)
        store.write(index, torch.randn(len(store.shards[index]), *shape, generator=random) * scale)


def queries_for(store: FeatureStore, count: int) -> np.ndarray:
    scale = np.arange(1, store.dim + 1, dtype=np.float32) ** -0.75
    shape = (count, *((1, store.dim) if len(store.shape) == 1 else store.shape))
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32) * scale


def one_of_many(folder: Path, count: int) -> tuple[dict[str, float], float]:
    return sweep(folder, count, GRIDS["paper"][:1])


def default_grid(folder: Path, count: int) -> tuple[dict[str, float], float]:
    return sweep(folder, count, GRIDS["log"])


def paper_grid(folder: Path, count: int) -> tuple[dict[str, float], float]:
    return sweep(folder, count, GRIDS["paper"])


def sweep(folder: Path, count: int, dampings: tuple[Damping, ...]) -> tuple[dict[str, float], float]:
    """Seconds of each part, and the peak of memory in MB; scores are summed up and dropped, one λ after another."""
    store = FeatureStore.open(next(folder.glob("train-*")))
    queries, before = queries_for(store, count), peak_memory()
    parts, clock = {}, time.perf_counter()
    kernel = Ridge.of(CopyRows([store], unit=len(store.shape) > 1))
    _ = kernel.eigenvalues
    parts["decompose"], clock = time.perf_counter() - clock, time.perf_counter()
    coordinates = kernel.coordinates(queries)
    parts["queries"], clock = time.perf_counter() - clock, time.perf_counter()
    for damping in dampings:
        kernel.scores(coordinates, damping.absolute(kernel))
    parts["scores"] = time.perf_counter() - clock
    return parts, peak_memory() - before


def one_damping(folder: Path, count: int) -> tuple[dict[str, float], float]:
    """The same for the first λ alone, as the commands do it if they are asked for one."""
    store = FeatureStore.open(next(folder.glob("train-*")))
    queries, before = queries_for(store, count), peak_memory()
    parts, clock = {}, time.perf_counter()
    kernel = Ridge.of(CopyRows([store], unit=True), one_damping=True)
    damping = GRIDS["paper"][0].absolute(kernel)
    kernel.squares(damping, 1, slice(0, 1))  # makes the factor
    parts["solve"], clock = time.perf_counter() - clock, time.perf_counter()
    coordinates = kernel.coordinates(queries)
    parts["queries"], clock = time.perf_counter() - clock, time.perf_counter()
    kernel.scores(coordinates, damping)
    parts["scores"] = time.perf_counter() - clock
    return parts, peak_memory() - before


def explicit_inverse(folder: Path, count: int, dim: int) -> tuple[tuple[float, float], float]:
    """Seconds of the inverse and of the products for one λ, in float32 as the paper's code has it."""
    store = FeatureStore.open(next(folder.glob("train-*")))
    train = torch.cat([block[:, :dim] for _, block in store.blocks()])
    queries = torch.from_numpy(queries_for(store, count)[:, 0, :dim])
    clock = time.perf_counter()
    gram = train.T @ train + 1.0 * torch.eye(dim)
    products = time.perf_counter() - clock
    clock = time.perf_counter()
    inverse = torch.linalg.inv(gram)
    seconds = time.perf_counter() - clock
    clock = time.perf_counter()
    queries @ (inverse @ train.T)
    return (seconds, products + time.perf_counter() - clock), peak_memory()


def peak_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
