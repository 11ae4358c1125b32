"""Scores of one picture by others, from the same rows: plain numpy, traker's scoring, and dattri's.

Peers are installed by `pip install --no-deps traker dattri`; one that is not there is left out. All of them hold the
rows [N, k] in memory, and traker and dattri one more array of that size, so they are measured with at most `MOST`
numbers. dattri has no scoring apart from its gradients. Its model here is a product of its parameters with a row, so
that the gradient of a row is the row, and its projection is the identity.
"""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dtrak.features.store import FeatureStore

MOST = 100_000 * 1024  # numbers
BATCH = 1000
Scored = Callable[[NDArray[np.float32], NDArray[np.float32], float], NDArray[np.float32]]


def hand_over(folder: Path) -> None:
    """Write the rows of the store as one file, which every peer reads in its own time."""
    np.save(folder / "rows.npy", FeatureStore.open(next(folder.glob("train-square-*"))).numpy())


def with_numpy(rows: NDArray[np.float32], query: NDArray[np.float32], damping: float) -> NDArray[np.float32]:
    gram = rows.T @ rows
    gram[np.diag_indices_from(gram)] += np.float32(damping)
    return np.asarray(rows @ np.linalg.solve(gram, query[0]))


def with_traker(rows: NDArray[np.float32], query: NDArray[np.float32], damping: float) -> NDArray[np.float32]:
    from trak.score_computers import BasicScoreComputer

    computer = BasicScoreComputer(torch.float32, torch.device("cpu"), logging_level=logging.ERROR, lambda_reg=damping)
    gradients, scores = torch.from_numpy(rows), torch.zeros(len(rows), 1)
    features = computer.get_x_xtx_inv(gradients, computer.get_xtx(gradients))
    computer.get_scores(features, torch.from_numpy(query), scores)
    return scores[:, 0].numpy()


def with_dattri(rows: NDArray[np.float32], query: NDArray[np.float32], damping: float) -> NDArray[np.float32]:
    from dattri.algorithm.trak import TRAKAttributor
    from dattri.task import AttributionTask
    from torch.utils.data import DataLoader, TensorDataset

    dim = rows.shape[1]
    model = torch.nn.Linear(dim, 1, bias=False)

    def product(weights: dict[str, Tensor], data: tuple[Tensor]) -> Tensor:
        return (weights["weight"][0] * data[0]).sum()

    def never_right(weights: dict[str, Tensor], data: tuple[Tensor]) -> Tensor:
        return torch.zeros(1)

    task = AttributionTask(product, model, model.state_dict())
    attributor = TRAKAttributor(
        task,
        never_right,
        projector_kwargs={"proj_dim": dim, "proj_type": "identity"},
        regularization=damping / dim,  # it divides rows by √k
    )
    loaders = [DataLoader(TensorDataset(torch.from_numpy(one)), batch_size=BATCH) for one in (rows, query)]
    attributor.cache(loaders[0])
    return np.asarray(attributor.attribute(loaders[1])[:, 0])


PEERS: dict[str, Scored] = {"numpy": with_numpy, "traker": with_traker, "dattri": with_dattri}


def peer(name: str, folder: Path, query: NDArray[np.float32], damping: float) -> dict[str, float]:
    """Score by one of the others, and compare with the scores that dtrak has written."""
    scores = PEERS[name](np.load(folder / "rows.npy"), query, damping)
    return {f"{name} agrees": round(float(np.corrcoef(scores, np.load(folder / "scores.npy"))[0, 1]), 4)}
