"""Compute the directions and eigenvalues of the Gauss–Newton matrix from training images, and keep them on disk."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from dtrak.contracts import Objective, Projection
from dtrak.features.inputs import ModelInputs
from dtrak.features.settings import FeatureSettings
from dtrak.files import write_bytes
from dtrak.gradients.copies import Copies, timesteps_of
from dtrak.gradients.featurizer import Featurizer
from dtrak.gradients.kronecker_factors import Block, Covariances, Directions, OutputProbes, rotated
from dtrak.gradients.projections import Identity
from dtrak.models import DiffusionModel
from dtrak.noise import stable_hash
from dtrak.progress import progress_bar


def kept_directions(model: DiffusionModel, images: ModelInputs, settings: FeatureSettings, folder: Path) -> Directions:
    """Return the directions for these images; read them from the folder if it has them."""
    copies = _copies(model, images, settings)
    names = sorted(model.parameters(settings.parameters))
    named = stable_hash(repr((model.fingerprint, copies, names, settings.autocast)))
    path = folder / f"directions-{named:016x}.safetensors"
    if not path.exists():
        write_bytes(path, save(_tensors(directions_of(model, images, settings))))
    return _directions(load_file(path))


def directions_of(
    model: DiffusionModel, images: ModelInputs, settings: FeatureSettings, probes: Objective | None = None
) -> Directions:
    """Pass all images through the network twice: first for the directions, then for the eigenvalues in them."""
    parameters = model.parameters(settings.parameters)
    shapes = {name: tuple(value.shape) for name, value in parameters.items()}
    copies, objective = _copies(model, images, settings), probes or OutputProbes(settings.seed)

    def featurizer(projection: Projection, batch_size: int | None) -> Featurizer:
        return Featurizer(
            model,
            [objective],
            copies,
            projection,
            parameters,
            condition=images.condition([0]),
            apart=True,
            batch_size=batch_size,
            autocast=settings.autocast,
        )

    covariances = Covariances(model.network, shapes)
    identity = Identity(0, shapes, 0)
    totals, seen = torch.zeros(identity.dim, dtype=torch.float64), 0
    passes = [featurizer(covariances, settings.batch_size), featurizer(identity, 1)]
    with progress_bar("curvature", 2 * len(images), "images") as advance:
        for rows in _batches(len(images), passes[0].batch_size):
            passes[0](images.tensor(rows), images.ids[rows].tolist(), images.condition(rows))
            advance(len(rows))
        blocks = covariances.blocks()
        for row in range(len(images)):
            found = passes[1](images.tensor([row]), images.ids[[row]].tolist(), images.condition([row]))[0, 0]
            totals += rotated(blocks, found).square().sum(0)
            seen += len(found)
            advance(1)
    return Directions(blocks, (totals / seen).float())


def _copies(model: DiffusionModel, images: ModelInputs, settings: FeatureSettings) -> Copies:
    steps = timesteps_of(model, settings.timesteps)
    return Copies(steps, settings.draws, settings.noise, settings.seed, images.fingerprint)


def _batches(count: int, size: int) -> list[list[int]]:
    return [list(range(start, min(start + size, count))) for start in range(0, count, size)]


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
