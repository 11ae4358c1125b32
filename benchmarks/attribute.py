"""What one more training image costs a user: `dtrak attribute` with all defaults, beside plain passes.

    python benchmarks/attribute.py BENCHMARK                  # its model and its training images
    python benchmarks/attribute.py BENCHMARK --method mixed-trak

The command runs with 200 and with 600 images, and the difference over 400 is the price of an image: what is done once,
as imports and the factor of the kernel, is in neither. The unit is a plain forward and backward pass over the
ten noised copies of an image, at the best batch size. Both take turns, and the quickest of each counts.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from dtrak.models import load_model

FEWER, MORE, COPIES = 200, 600, 10
BATCHES = (50, 100, 200)  # noised copies in a plain pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", type=Path)
    parser.add_argument("--method", action="append", default=[], help="besides the default; several times if wanted")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    commands: dict[str, list[str]] = {"all defaults": [], **{one: ["--method", one] for one in args.method}}
    best = dict.fromkeys(["plain", *commands], float("inf"))
    with tempfile.TemporaryDirectory() as folder:
        for count in (FEWER, MORE):
            write_images(args.benchmark, Path(folder), count)
        for _ in range(args.rounds):
            best["plain"] = min(best["plain"], plain_pass(args.benchmark))
            for name, options in commands.items():
                fewer, more = (attribute(args.benchmark, Path(folder), count, options) for count in (FEWER, MORE))
                best[name] = min(best[name], (more - fewer) / (MORE - FEWER))
    table = Table("an image more costs", "ms", "plain passes over its ten copies")
    for name, seconds in best.items():
        table.add_row(name, f"{1000 * seconds:.1f}", f"{seconds / best['plain']:.2f}")
    Console().print(table)


def write_images(benchmark: Path, folder: Path, count: int) -> None:
    with np.load(benchmark / "train.npz") as train, np.load(benchmark / "validation.npz") as queries:
        np.savez(folder / f"{count}.npz", images=train["images"][:count])
        np.savez(folder / "query.npz", images=queries["images"][:1])


def attribute(benchmark: Path, folder: Path, count: int, options: list[str]) -> float:
    """Return the seconds that the command takes, with features that nobody has made before."""
    images = ["--train", folder / f"{count}.npz", "--queries", folder / "query.npz", "--out", folder / "scores.npz"]
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "dtrak", "attribute", "--model", benchmark / "model", *images, *options],
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - started


def plain_pass(benchmark: Path) -> float:
    """Return the seconds of a plain forward and backward pass over the copies of one image, at the best batch size."""
    model = load_model(str(benchmark / "model"))
    network = model.network.requires_grad_(True)

    def seconds_of(batch: int) -> float:
        noisy, timesteps = torch.randn(batch, *model.shape), torch.arange(batch) * 97 % 1000
        found = []
        for _ in range(4):
            started = time.perf_counter()
            model.predict_target(noisy, timesteps, {}).square().mean().backward()
            network.zero_grad()
            found.append((time.perf_counter() - started) / batch * COPIES)
        return min(found)

    return min(seconds_of(batch) for batch in BATCHES)


if __name__ == "__main__":
    main()
