"""What a choice costs and what it buys: LDS and time of projections, dimensions and parameter patterns on a benchmark.

    python benchmarks/choices.py CIFAR2 --markdown docs/choices.md

Each row featurizes the benchmark's training images and queries, scores them for a grid of damping and reports the best
LDS in hindsight (the same for all rows, so that they compare), with its bootstrap error over subsets. Time is that of
features and scores, relative to the first row's. Features are kept in --cache, with their times, so that a stopped run
goes on.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from dtrak import load_images, load_model
from dtrak.evaluation.lds import bootstrap, lds
from dtrak.featurizing import FeatureSettings, featurize
from dtrak.kernels import decompose

DAMPINGS = 10 ** np.arange(-4, 2.1, 0.5)  # of the mean eigenvalue

# A dense matrix is made anew for every pass: the more images share one, the better for it.
DENSE = {"projection": "dense", "batch_size": 32}

ROWS = {
    "sketch, k = 4,096 (the default)": {"projection_dim": 4096},
    "no projection": {"projection": "identity"},
    "sketch, k = 512": {"projection_dim": 512},
    "dense, k = 512": DENSE | {"projection_dim": 512},
    "dense, k = 4,096": DENSE | {"projection_dim": 4096},
    "sketch, k = 32,768": {"projection_dim": 32768},
    "K = 5, sketch, k = 4,096": {"timesteps": 5},
    "only up_blocks and conv_out, sketch, k = 4,096": {"parameters": "up_blocks|conv_out"},
    "only conv_out, no projection": {"parameters": "conv_out", "projection": "identity"},
    "only conv_out, no projection, K = 100": {"parameters": "conv_out", "projection": "identity", "timesteps": 100},
    "own noise for each image, sketch, k = 4,096": {"noise": "per-image"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", type=Path, help="a folder with model/, train.npz, validation.npz, masks, losses")
    parser.add_argument("--objective", default="square")
    parser.add_argument("--rows", default="", help="only rows that contain this text")
    parser.add_argument("--cache", type=Path, help="keep features here; a temporary folder otherwise")
    parser.add_argument("--markdown", type=Path, help="write the table here as well")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            measure(arguments.benchmark, arguments.objective, name, settings, arguments.cache or Path(folder))
            for name, settings in ROWS.items()
            if arguments.rows in name
        ]
    show(rows, arguments)


def measure(benchmark: Path, objective: str, name: str, settings: dict, cache: Path) -> dict:
    """The row of one choice: LDS, its error, the damping, seconds."""
    row = cache / f"{name.replace(' ', '-').replace(',', '')}-{objective}"
    if (row / "row.json").exists():
        return json.loads((row / "row.json").read_text())
    model = load_model(str(benchmark / "model"))
    train, queries = (load_images(str(benchmark / f"{part}.npz")) for part in ("train", "validation"))
    masks, losses = np.load(benchmark / "masks.npy"), np.load(benchmark / "losses.npy")
    started = time.perf_counter()
    features = [
        featurize(model, images, [objective], FeatureSettings(**settings), row, part)[objective]
        for images, part in ((train, "train"), (queries, "queries"))
    ]
    kernel = decompose(features[0])
    coordinates = kernel.coordinates(features[1].numpy())
    scores = {damping: kernel.scores(coordinates, damping * kernel.mean_eigenvalue) for damping in DAMPINGS}
    seconds = time.perf_counter() - started
    best = max(scores, key=lambda damping: lds(scores[damping], masks, losses).mean())
    result = {
        "name": name,
        "lds": lds(scores[best], masks, losses).mean(),
        "error": bootstrap(scores[best], masks, losses).std(),
        "damping": float(best),
        "numbers": features[0].dim,
        "seconds": seconds,
    }
    (row / "row.json").write_text(json.dumps(result))
    return result


def show(rows: list[dict], arguments: argparse.Namespace) -> None:
    heads = ["choice", "numbers per image", "LDS %", "best λ ÷ mean eigenvalue", "seconds", "relative"]
    cells = [
        [
            row["name"],
            f"{row['numbers']:,}",
            f"{row['lds']:.1f} ± {row['error']:.1f}",
            f"{row['damping']:.2g}",
            f"{row['seconds']:.0f}",
            f"{row['seconds'] / rows[0]['seconds']:.2f}",
        ]
        for row in rows
    ]
    table = Table(*heads)
    for line in cells:
        table.add_row(*line)
    Console().print(table)
    if arguments.markdown:
        lines = [heads, ["---"] * len(heads), *cells]
        arguments.markdown.write_text("\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n")


if __name__ == "__main__":
    main()
