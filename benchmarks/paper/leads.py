"""What else was tried to make step-trak better, each beside step-trak as it is, with the best λ in hindsight.

A lead that is kept becomes an option of the method, or the method itself; those in this table did not pay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from findings import Finding
from study import Array, Study
from torch import Tensor, nn

from dtrak.gradients.copies import timesteps_of
from dtrak.kernels import ArrayRows, CopyRows, Ridge
from dtrak.kernels.damping import GRIDS
from dtrak.noise import stream
from dtrak.tables import Entry, Table

COPIES = 10
MASKS = 4
PAIRS = {"two objectives, simple and square": "square", "two objectives, simple and a random probe": "probe"}

Curves = dict[str, list[Array]]  # for each kind of queries, scores [Q, N] with every λ of the grid


def leads(study: Study) -> Finding:
    """Weights for timesteps, several objectives in one kernel, and dropout masks as an ensemble."""
    found = {"as it is": study.of_curves(lambda: _curves(study, ["simple"]), "lead", "as it is")}
    for name in ("schedule", "length", "both"):
        way = f"timesteps weighted by {WEIGHTS[name]}"
        found[way] = study.of_curves(lambda name=name: _curves(study, ["simple"], name), "lead", name)
    for way, other in PAIRS.items():
        found[way] = study.of_curves(lambda other=other: _curves(study, ["simple", other]), "lead", other)
    if any(layer.p for layer in _dropouts(study.model.network).values()):
        way = f"the mean over {MASKS} dropout masks"
        found[way] = study.of_curves(lambda: _over_masks(study), "lead", "masks", MASKS)
    rows: list[list[Entry]] = [
        [way, *(of_kind[kind].cell for kind in study.query_kinds)] for way, of_kind in found.items()
    ]
    yield Table(["step-trak", *study.query_kinds], rows, "Leads that did not pay, the best λ in hindsight")


WEIGHTS = {
    "schedule": "the part of the schedule that each stands for",
    "length": "the mean length of their gradients",
    "both": "both of these",
}


def _curves(study: Study, objectives: Sequence[str], weights: str | None = None) -> Curves:
    return {kind: [_squared(one) for one in of_kind] for kind, of_kind in _plain(study, objectives, weights).items()}


def _over_masks(study: Study) -> Curves:
    """The mean of the scores with each mask, squared; each mask has a kernel of its own."""
    of_masks = [_plain(_with_mask(study, mask), ["simple"]) for mask in range(MASKS)]
    return {
        kind: [_squared(np.mean(one, axis=0)) for one in zip(*(of_mask[kind] for of_mask in of_masks), strict=True)]
        for kind in study.query_kinds
    }


def _plain(study: Study, objectives: Sequence[str], weights: str | None = None) -> Curves:
    """Scores that are not squared, for each kind of queries and every λ."""
    found = study.features(objectives, apart=True, timesteps=COPIES)
    kernel = Ridge.of(CopyRows([ArrayRows(found["train"][one]) for one in objectives], unit=True))
    of_copies = _weights(study, found["train"]["simple"], weights)
    curves: Curves = {}
    for kind in study.query_kinds:
        asked = CopyRows([ArrayRows(found[kind][one]) for one in objectives], unit=True)[:]  # [Q, C, k]
        if of_copies is not None:
            asked = asked * of_copies[:, None]
        coordinates = kernel.coordinates(asked)
        curves[kind] = [kernel.scores(coordinates, one.absolute(kernel)) for one in GRIDS["log"]]
    return curves


def _weights(study: Study, train: Array, name: str | None) -> Array | None:
    """The weight of each copy's scores, [C]."""
    if name is None:
        return None
    steps = timesteps_of(study.model, COPIES, "visible")
    ends = [0.0, *((a + b) / 2 for a, b in pairwise(steps)), float(study.model.process.timesteps)]
    schedule = np.diff(ends)
    lengths = np.linalg.norm(train, axis=2).mean(0)
    chosen = {"schedule": schedule, "length": lengths, "both": schedule * lengths}[name]
    return (chosen / chosen.mean()).astype(np.float32)


def _squared(scores: Array) -> Array:
    return np.asarray(scores * np.abs(scores))


class FixedMask(nn.Module):
    """Dropout with one mask for all images and timesteps, also in evaluation mode."""

    def __init__(self, p: float, *names: str | int) -> None:
        super().__init__()
        self.p, self.names = p, names

    def forward(self, x: Tensor) -> Tensor:
        kept = stream(*self.names).random(tuple(x.shape[1:])) >= self.p
        return x * torch.from_numpy(kept).to(x) / (1 - self.p)


def _with_mask(study: Study, mask: int) -> Study:
    """The study with a model whose dropout layers have fixed masks, and a folder of its own for their features."""
    masked = replace(study, folder=study.folder / f"mask-{mask}")
    network = masked.model.network
    for name, layer in _dropouts(network).items():
        network.set_submodule(name, FixedMask(layer.p, "mask", mask, name))
    return masked


def _dropouts(network: nn.Module) -> Mapping[str, nn.Dropout]:
    return {name: layer for name, layer in network.named_modules() if isinstance(layer, nn.Dropout)}
