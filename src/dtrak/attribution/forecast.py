"""Say before anything starts what attribution of many images takes: passes, hours, disk and memory, for each choice.

The speed of the model is measured with a few random pictures, or given. A pass is that of one noised copy of an image:
forward, backward to activations, and the projection.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from dtrak.attribution.index_building import NUMBERS
from dtrak.features.spec import Spec
from dtrak.features.store import DTYPES
from dtrak.gradients.objectives import OBJECTIVES
from dtrak.images.image_files import Picture
from dtrak.images.images import Images
from dtrak.kernels.rows import KEPT_BYTES
from dtrak.tables import Cell, Entry, Table

if TYPE_CHECKING:
    from dtrak.models import DiffusionModel

MEASURED = 32  # random pictures
READ_RATE = 1e9  # bytes of features that are read and compared in a second, for the time of a question
CODE_BYTES = 1 / 4  # that each number of a vector has in the codes of an index
WORKING = 1 << 30  # memory for blocks, libraries and programs


@dataclass(frozen=True)
class Choice:
    """One way to make features."""

    method: str
    timesteps: int  # K
    dim: int  # k
    dtype: str
    objectives: int  # that share passes
    apart: bool

    def row_bytes(self) -> int:
        """Return the bytes of an image's features."""
        copies = self.timesteps if self.apart else 1
        return self.objectives * copies * self.dim * DTYPES[self.dtype].itemsize

    def kernel_bytes(self, images: int) -> int:
        """Return the bytes of the fitted kernels, float64 [k, k] for each objective, or float32 for all copies."""
        return 4 * self.dim**2 if self.apart else self.objectives * 8 * min(self.dim, images) * self.dim

    def memory(self, images: int) -> int:
        """Return the memory that fitting and scoring take: some matrices [k, k], and features if they are small."""
        kept = min(KEPT_BYTES, images * self.row_bytes())
        return WORKING + 4 * 8 * self.dim**2 + kept


def choices() -> Iterator[Choice]:
    """Yield the choices of a plan, the cheapest first. `auto` damping of d-trak needs a second objective."""
    for timesteps in (2, 5, 10):
        yield Choice("d-trak", timesteps, 1024, "float16", 2, False)
        yield Choice("d-trak", timesteps, 4096, "float32", 2, False)
    for timesteps in (2, 5, 10):
        yield Choice("step-trak", timesteps, 1024, "float16", 1, True)
        yield Choice("step-trak", timesteps, 4096, "float16", 1, True)


def forecast(images: int, rate: float, workers: int, said: str) -> Table:
    """Return what each choice takes, for so many passes in a second on each of the workers."""
    rows: list[list[Entry]] = []
    for one in choices():
        passes = images * one.timesteps
        # A second objective shares the forward pass, and adds its backward pass: about two thirds of the first pass.
        hours = passes * (1 + 2 / 3 * (one.objectives - 1)) / rate / workers / 3600
        features, index = images * one.row_bytes(), images * NUMBERS * (4 + CODE_BYTES)
        read = features if one.apart else features / one.objectives  # the second objective is for λ alone
        rows.append(
            [
                one.method,
                one.timesteps,
                one.dim,
                one.dtype,
                Cell(passes, f"{passes:,}"),
                Cell(hours, f"{hours:,.1f}"),
                Cell(features, _size(features + one.kernel_bytes(images))),
                Cell(index, _size(index)),
                Cell(one.memory(images), _size(one.memory(images))),
                Cell(read / READ_RATE, f"{read / READ_RATE:,.1f}"),
            ]
        )
    heads = ["method", "K", "k", "stored as", "passes", "hours", "disk", "index", "memory", "question s"]
    notes = [
        said,
        f"{images:,} images. Two objectives share passes; the second adds two thirds of a pass. Disk: features and "
        f"kernels. Index: {NUMBERS} numbers an image, and their codes. Memory: of the machine that fits and scores. "
        "Question: all features that are scored are read once, at 1 GB a second; with an index, it takes about 0.1 s.",
    ]
    return Table(heads, rows, notes=notes)


def measured_rate(model: "DiffusionModel", parameters: str | None = None) -> float:
    """Return the passes in a second of this machine, for features of one objective."""
    from dtrak.features.featurizing import featurize
    from dtrak.features.model_inputs import model_inputs

    inputs, objectives = model_inputs(model, _random_pictures(model)), {"simple": OBJECTIVES["simple"]}
    layers = parameters or "later"
    spec = Spec("final", "apart", timesteps="visible:2", layers=layers, projection="factored", projection_dim=1024)
    with TemporaryDirectory() as folder:
        featurize(model, inputs.select([0]), spec, objectives, {"simple": (Path(folder, "first"), {})})
        cost = featurize(model, inputs, spec, objectives, {"simple": (Path(folder, "every"), {})})["simple"].cost
        seconds = cost.gradients + cost.projection
    return 2 * MEASURED / max(seconds, 1e-9)


def _random_pictures(model: "DiffusionModel") -> Images:
    channels, height, width = model.image_shape
    pixels = np.random.default_rng(0).integers(0, 256, (MEASURED, height, width, channels), dtype=np.uint8)
    pictures = [Picture(f"random picture {number}", one) for number, one in enumerate(pixels)]
    columns = {"caption": np.array(["a picture"] * MEASURED), "label": np.array(["picture"] * MEASURED)}
    drawn = np.fromiter(pictures, dtype=np.object_)
    return Images("random pictures", np.arange(MEASURED), columns, model.image_shape, drawn)


def _size(count: float) -> str:
    unit, name = next(
        ((unit, name) for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")) if count >= unit), (1e3, "KB")
    )
    return f"{count / unit:,.1f} {name}"
