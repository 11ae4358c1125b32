"""Compute the directions and eigenvalues of the Gauss–Newton matrix from training images, and keep them on disk."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from dtrak.contracts import Objective, Projection
from dtrak.features.featurizing import parameters_of
from dtrak.features.model_inputs import ModelInputs
from dtrak.features.spec import Spec
from dtrak.features.store import PART
from dtrak.files import write_bytes, write_json
from dtrak.fingerprints import Facts, hash_of
from dtrak.gradients.copies import Copies, timesteps_of
from dtrak.gradients.featurizer import Featurizer
from dtrak.gradients.kronecker_factors import Block, Covariances, Directions, OutputProbes, rotated
from dtrak.gradients.projections import Identity
from dtrak.models import DiffusionModel
from dtrak.progress import progress_bar


def kept_directions(
    model: DiffusionModel, inputs: ModelInputs, spec: Spec, folder: Path, part: Facts, batch_size: int | None = None
) -> Directions:
    """Return the directions for these images. They are kept in `curvature-FINGERPRINT` of the folder."""
    path = folder / f"curvature-{hash_of(part)}" / "directions.safetensors"
    if not path.exists():
        write_json(path.with_name(PART), {"part": part})
        write_bytes(path, save(_tensors(directions_of(model, inputs, spec, batch_size))))
    return _directions(load_file(path))


def directions_of(
    model: DiffusionModel,
    inputs: ModelInputs,
    spec: Spec,
    batch_size: int | None = None,
    probes: Objective | None = None,
) -> Directions:
    """Pass all images through the network twice: first for the directions, then for the eigenvalues in them."""
    parameters = parameters_of(model, spec)
    shapes = {name: tuple(value.shape) for name, value in parameters.items()}
    copies = Copies(timesteps_of(model, spec.timesteps), spec.draws, spec.noise, spec.seed)
    objective = probes or OutputProbes(spec.seed)

    def featurizer(projection: Projection, batch_size: int | None) -> Featurizer:
        return Featurizer(
            model,
            [objective],
            copies,
            projection,
            parameters,
            condition=inputs.condition([0]),
            apart=True,
            batch_size=batch_size,
            autocast=spec.autocast,
        )

    covariances = Covariances(model.network, shapes)
    identity = Identity(0, shapes, 0)
    totals, seen = torch.zeros(identity.dim, dtype=torch.float64), 0
    passes = [featurizer(covariances, batch_size), featurizer(identity, 1)]
    with progress_bar("curvature", 2 * len(inputs), "images") as advance:
        for start in range(0, len(inputs), passes[0].batch_size):
            rows = list(range(start, min(start + passes[0].batch_size, len(inputs))))
            passes[0](inputs.tensor(rows), inputs.ids[rows].tolist(), inputs.condition(rows))
            advance(len(rows))
        blocks = covariances.blocks()
        for row in range(len(inputs)):
            found = passes[1](inputs.tensor([row]), inputs.ids[[row]].tolist(), inputs.condition([row]))[0, 0]
            totals += rotated(blocks, found).square().sum(0)
            seen += len(found)
            advance(1)
    return Directions(blocks, (totals / seen).float())


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
