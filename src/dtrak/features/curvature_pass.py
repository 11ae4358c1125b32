"""Compute the directions and eigenvalues of the Gauss–Newton matrix from training images, and keep them on disk.

All images pass through the network twice: first for the covariances of inputs and of output gradients of each layer,
whose eigenvectors are the directions, then for the squares of the gradients in these directions. Every few hundred
images, the sums are written down, and a killed command goes on from them.
"""

import os
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from dtrak.contracts import Projection
from dtrak.features.featurizing import parameters_of
from dtrak.features.model_inputs import ModelInputs
from dtrak.features.spec import Spec
from dtrak.features.store import PART
from dtrak.files import make_folder, temporary, write_bytes, write_errors, write_json
from dtrak.fingerprints import Facts, hash_of
from dtrak.gradients.copies import Copies, timesteps_of
from dtrak.gradients.featurizer import Featurizer
from dtrak.gradients.kronecker_factors import Block, Covariances, Directions, probed
from dtrak.gradients.projections import Identity
from dtrak.models import DiffusionModel
from dtrak.progress import progress_bar

EVERY = 256  # images after which sums are written down
COVARIANCES, SQUARES, FOUND = "covariances.safetensors", "squares.safetensors", "directions.safetensors"


def kept_directions(
    model: DiffusionModel, inputs: ModelInputs, spec: Spec, folder: Path, part: Facts, batch_size: int | None = None
) -> Directions:
    """Return the directions for these images. They are kept in `curvature-FINGERPRINT` of the folder."""
    folder = folder / f"curvature-{hash_of(part)}"
    if not (folder / FOUND).exists():
        write_json(folder / PART, {"part": part})
        write_bytes(folder / FOUND, save(_tensors(directions_of(model, inputs, spec, folder, batch_size))))
        for name in (COVARIANCES, SQUARES):
            (folder / name).unlink(missing_ok=True)
    return _directions(load_file(folder / FOUND))


def directions_of(
    model: DiffusionModel, inputs: ModelInputs, spec: Spec, folder: Path, batch_size: int | None = None
) -> Directions:
    """Return the directions for these images; the `folder` keeps what was summed up before a kill."""
    parameters, inputs = parameters_of(model, spec), inputs.named()
    shapes = {name: tuple(value.shape) for name, value in parameters.items()}
    copies = Copies(timesteps_of(model, spec.timesteps), spec.draws, spec.noise, spec.seed)
    covariances, identity, count = Covariances(model.network, shapes), Identity(0, shapes, 0), len(inputs)

    def featurizer(projection: Projection, batch_size: int | None) -> Featurizer:
        return Featurizer(
            model,
            [probed],
            copies,
            projection,
            parameters,
            condition=inputs.condition([0]),
            apart=True,
            batch_size=batch_size,
            autocast=spec.autocast,
            probed=True,
        )

    def before(name: str) -> tuple[int, dict[str, Tensor]]:
        with suppress(OSError, SafetensorError):
            sums = load_file(folder / name)
            return int(sums.pop("images")), sums
        return 0, {}

    def keep(name: str, images: int, sums: dict[str, Tensor]) -> None:
        with write_errors(folder), temporary(make_folder(folder) / name) as new:
            save_file({"images": torch.tensor(images), **sums}, new)  # not in memory twice
            os.replace(new, folder / name)

    with progress_bar("curvature", 2 * count, "images") as advance:
        second, sums = before(SQUARES)
        first, covariances.totals = (count, {}) if sums else before(COVARIANCES)
        advance(first + second)
        if not sums:
            features = featurizer(covariances, batch_size)
            step = features.batch_size
            for start in range(first, count, step):
                rows = list(range(start, min(start + step, count)))
                features(*inputs.batch(rows))
                advance(len(rows))
                done = rows[-1] + 1
                if start // EVERY < done // EVERY or done == count:
                    keep(COVARIANCES, done, covariances.totals)
            sums = _tensors(Directions(covariances.blocks(), torch.zeros(identity.dim, dtype=torch.float64)))
            keep(SQUARES, 0, sums)
        found, features = _directions(sums), featurizer(identity, 1)
        squares = found.eigenvalues
        for row in range(second, count):
            squares += found.rotated(features(*inputs.batch([row]))[0, 0]).square().sum(0)
            advance(1)
            if (row + 1) % EVERY == 0:
                keep(SQUARES, row + 1, _tensors(found))
    return Directions(found.blocks, (squares / (count * len(copies.pairs()))).float())


def _tensors(directions: Directions) -> dict[str, Tensor]:
    """Return directions as named tensors, for a file."""
    found = {"eigenvalues": directions.eigenvalues}
    for number, block in enumerate(directions.blocks):
        bias = block.bias or slice(0, 0)
        places = [block.weight.start, block.weight.stop, bias.start, bias.stop]
        found |= {
            f"{number}.places": torch.tensor(places),
            f"{number}.left": block.left,
            f"{number}.right": block.right,
        }
    return {name: value.contiguous() for name, value in found.items()}


def _directions(tensors: dict[str, Tensor]) -> Directions:
    """Return directions from named tensors."""
    blocks = []
    for number in range((len(tensors) - 1) // 3):
        places, left, right = (tensors[f"{number}.{name}"] for name in ("places", "left", "right"))
        first, last, start, stop = places.tolist()
        blocks.append(Block(slice(first, last), slice(start, stop) if stop else None, left, right))
    return Directions(blocks, tensors["eigenvalues"])
