"""Draw what the artists' LoRA has learnt, and its credit beside that of models without an artist.

    python benchmarks/artists/figures.py run measured.json docs/images

writes artists.png, pictures of every artist beside what the LoRA draws for the artist's name, and credit.png, the share
of each artist by credit over its share by the rise of the loss, for every generated picture.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from dtrak.runs.run import Run

SHOWN = 6  # pictures of each artist


def artists(run: Run, path: Path) -> None:
    """Draw a row for each artist: training images, then what the LoRA draws of the same classes."""
    train, drawn = run.train_images, run.query_images(str(run.folder / "generated"))
    of_artist = train.columns["artist"]
    names = list(dict.fromkeys(of_artist.tolist()))
    figure, axes = plt.subplots(len(names), 2 * SHOWN + 1, figsize=(11, 5.4))
    for row, name in enumerate(names):
        mine = [q for q, prompt in enumerate(drawn.columns["prompt"]) if prompt.split(" by ")[1:] == [name]][:SHOWN]
        for place, query in enumerate(mine):
            label = drawn.columns["prompt"][query].split()[1]
            same = np.flatnonzero((of_artist == name) & (train.columns["label"] == label))[0]
            axes[row, place].imshow(train.pixels([same])[0])
            axes[row, SHOWN + 1 + place].imshow(drawn.pixels([query])[0])
        axes[row, 0].set_ylabel(name, rotation=0, ha="right", va="center")
    for ax in axes.flat:
        ax.set_xticks([])
        ax.set_yticks([])
        ax.spines[:].set_visible(False)
    axes[0, 0].set_title("trained on", loc="left", fontsize=10)
    axes[0, SHOWN + 1].set_title("drawn by the LoRA for “a … by the artist”", loc="left", fontsize=10)
    figure.savefig(path, dpi=80, bbox_inches="tight")


def credit(measured: dict[str, Any], path: Path) -> None:
    """Draw a point for every picture and artist: the share by credit over the share by effect."""
    shown = {name: measured["methods"][name] for name in ("step-trak", "clip-cosine") if name in measured["methods"]}
    figure, axes = plt.subplots(1, len(shown), figsize=(4.2 * len(shown), 4.2), sharey=True, squeeze=False)
    truth = np.array(measured["true shares"])
    for ax, (name, row) in zip(axes[0], shown.items(), strict=True):
        for place, artist in enumerate(measured["artists"]):
            ax.scatter(100 * truth[:, place], 100 * np.array(row["shares"])[:, place], s=12, alpha=0.7, label=artist)
        ax.plot([0, 100], [0, 100], color="grey", linewidth=0.8)
        ax.set(title=name, xlabel="share of the rise of the loss without the artist, %", xlim=(-3, 103), ylim=(-3, 103))
    axes[0, 0].set_ylabel("share of the credit, %")
    axes[0, 0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("measured", type=Path, help="what measure.py has written")
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    artists(Run.open(args.run), args.folder / "artists.png")
    credit(json.loads(args.measured.read_text()), args.folder / "credit.png")


if __name__ == "__main__":
    main()
