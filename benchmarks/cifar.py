"""Write the files of CIFAR images from which benchmarks are made: cifar2-train.npz and the like.

    python benchmarks/cifar.py                                   # from the Hugging Face hub
    python benchmarks/cifar.py --train IMAGES --validation IMAGES --out FOLDER

CIFAR-2 is 5,000 automobiles and horses of CIFAR-10's training set, and 1,000 of its test set; `cifar10-*.npz` has 800
and 100 of each class. Each file has images uint8 [N, 32, 32, 3], labels, label_names, and ids, the rows in CIFAR-10.
"""

import argparse
from pathlib import Path

import numpy as np

from dtrak import load_images
from dtrak.files import as_npz, write_bytes
from dtrak.images.selection import Selection

CIFAR2 = ["automobile", "horse"]
FILES = {
    "cifar2-train": ("train", Selection(classes=CIFAR2, count=5000, seed=42)),
    "cifar2-validation": ("validation", Selection(classes=CIFAR2, count=1000, seed=42)),
    "cifar10-train": ("train", Selection(per_class=800, seed=42)),
    "cifar10-validation": ("validation", Selection(per_class=100, seed=42)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", default="hf:cifar10:train", metavar="IMAGES")
    parser.add_argument("--validation", default="hf:cifar10:test", metavar="IMAGES")
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER")
    args = parser.parse_args()
    for name, (part, selection) in FILES.items():
        images = load_images(getattr(args, part), select=selection)
        names, labels = np.unique(images.columns["label"].astype(str), return_inverse=True)
        arrays = {
            "images": images.pixels(range(len(images))),
            "labels": labels,
            "label_names": names,
            "ids": images.ids,
        }
        write_bytes(args.out / f"{name}.npz", as_npz(arrays))
        print(f"{args.out / name}.npz: {len(images):,} images")


if __name__ == "__main__":
    main()
