"""Counterfactual evaluation: without the images that a method holds to have made a picture, is it drawn all the same?

For each query, its N highest-scoring training images are removed, the model is trained again with the same seed, and
draws again from the query's seed. For the original x and the counterfactual picture x′,

    ℓ2 = ‖x − x′‖₂ over pixels in [−1, 1],        cosine = e(x)·e(x′) / (‖e(x)‖ ‖e(x′)‖) of an encoder's embeddings e

Latent models' ℓ2 is that of the pictures' latents. The further apart they are, the better the method has found what
the picture came from. At a timestep t of the
trajectory, x and x′ are what the two models take their own x_t for: x̂_0(x_t).

Queries, methods and steps that remove the same images share one retraining (`redrawing.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dtrak.engines import Engine
from dtrak.evaluation.redrawing import Drawn, RedrawnPictures, TrajectoryStep, draw_again, draw_without
from dtrak.features.encoders import BATCH_SIZE, Encoder
from dtrak.features.trajectories import SEED
from dtrak.files import alone_in, as_npz, clear_leftovers, write_bytes, write_json
from dtrak.images.images import Images
from dtrak.models.sampling import to_pixels
from dtrak.runs.run import versions
from dtrak.tables import Cell, Entry, Table

Floats = NDArray[np.float64]
Pixels = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Effect:
    """What became of the queries without the images that a method has named."""

    method: str
    pictures: Pixels  # [Q, H, W, C]
    l2: Floats  # [Q]
    cosine: Floats  # [Q]


@dataclass(frozen=True, eq=False)
class Counterfactual:
    """Methods side by side, at one step."""

    step: TrajectoryStep
    queries: Images
    originals: Pixels  # [Q, H, W, C]
    effects: Sequence[Effect]
    made_by: Mapping[str, Any]

    def json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "methods": {one.method: {"l2": _summary(one.l2), "cosine": _summary(one.cosine)} for one in self.effects},
            "queries": self.queries.ids.tolist(),
            "seeds": self.queries.columns[SEED].tolist(),
            **self.made_by,
        }


def evaluate_counterfactual(
    redrawn: RedrawnPictures,
    scores: Mapping[TrajectoryStep, Mapping[str, NDArray[np.float32]]],
    encoder: Encoder,
    engine: Engine,
    made_by: Mapping[str, Any],
) -> list[Counterfactual]:
    """Retrain and compare, from the scores [Q, N] of each method at each step; `made_by` says how they came about.

    Writes what it finds into the run's counterfactual/, or its step-T/ for the steps of the trajectory.
    """
    asked = [(step, method) for step, by_method in scores.items() for method in by_method]
    removed = np.stack([highest(scores[step][method], redrawn.remove) for step, method in asked])  # [L, Q, N]
    sets, which = unique_sets(removed)
    originals = draw_again(redrawn)
    with alone_in(redrawn.folder):
        clear_leftovers(redrawn.folder / "jobs")
        drawn = draw_without(redrawn, sets, which, [step for step, _ in asked], engine)
        results = []
        for step in scores:
            rows = [index for index, (one, _) in enumerate(asked) if one == step]
            pictures = {asked[row][1]: drawn[row] for row in rows}
            settings = {
                "train": len(redrawn.run.train_images),
                "removed": redrawn.remove,
                "retrainings": len(np.unique(which[rows])),
                "distances": "pixels in [−1, 1]" if redrawn.model.autoencoder is None else "latents",
                "encoder": encoder.name,
                "ddim_steps": redrawn.ddim_steps,
                "scores": dict(made_by),
                "fingerprints": {"model": redrawn.model.fingerprint, "train": redrawn.run.train_images.fingerprint},
                "versions": versions(),
            }
            effects = compare(originals[step], pictures, encoder)
            found = Counterfactual(step, redrawn.queries, _pixels(originals[step].pictures), effects, settings)
            keep(found, folder_of(redrawn, step))
            results.append(found)
    return results


def compare(originals: Drawn, drawn: Mapping[str, Drawn], encoder: Encoder) -> list[Effect]:
    """How far each method's pictures are from the originals."""
    vectors = embeddings(encoder, _pixels(originals.pictures))
    effects = []
    for method, of_method in drawn.items():
        pixels = _pixels(of_method.pictures)
        cosine = cosines(vectors, embeddings(encoder, pixels))
        effects.append(Effect(method, pixels, l2_distances(originals.places, of_method.places), cosine))
    return effects


def highest(values: NDArray[np.float32], count: int) -> NDArray[np.bool_]:
    """Which `count` training images have each query's highest scores, the first of equal ones: bool [Q, N]."""
    chosen = np.zeros(values.shape, dtype=np.bool_)
    np.put_along_axis(chosen, np.argsort(-values, axis=1, kind="stable")[:, :count], True, axis=1)
    return chosen


def unique_sets(removed: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """The different ones [M, N] of the sets [L, Q, N], and which of them each is [L, Q]."""
    packed = np.packbits(removed.reshape(-1, removed.shape[-1]), axis=1)
    _, first, which = np.unique(packed, axis=0, return_index=True, return_inverse=True)
    return removed.reshape(-1, removed.shape[-1])[first], which.reshape(removed.shape[:2])


def l2_distances(pictures: NDArray[np.float32], others: NDArray[np.float32]) -> Floats:
    """‖x − x′‖₂ [Q] of pictures or latents [Q, C, H, W] and as many others."""
    differences = pictures.astype(np.float64) - others
    distances: Floats = np.linalg.norm(differences.reshape(len(differences), -1), axis=1)
    return distances


def cosines(vectors: NDArray[np.float32], others: NDArray[np.float32]) -> Floats:
    """a·b / (‖a‖ ‖b‖) [Q] of embeddings [Q, d] and as many others."""
    a, b = vectors.astype(np.float64), others.astype(np.float64)
    found: Floats = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return found


def embeddings(encoder: Encoder, pictures: Pixels) -> NDArray[np.float32]:
    """[Q, d] of pictures [Q, H, W, C]."""
    starts = range(0, len(pictures), BATCH_SIZE)
    return np.concatenate([encoder(pictures[start : start + BATCH_SIZE]) for start in starts])


def table(results: Sequence[Counterfactual]) -> Table:
    """Medians and quartiles by step and method."""
    at_steps = any(one.step is not None for one in results)
    heads = ["method", *["t"] * at_steps]
    heads += [f"{name}{part}" for name in ("ℓ2", "cos") for part in ("", " 25%", " 75%")]
    rows: list[list[Entry]] = []
    for result in results:
        for effect in result.effects:
            row: list[Entry] = [effect.method, *([result.step] if result.step is not None else [])]
            for values, form in ((effect.l2, ".2f"), (effect.cosine, ".3f")):
                row += [Cell(float(one), f"{one:{form}}") for one in np.percentile(values, [50, 25, 75])]
            rows.append(row)
    made_by = results[0].made_by
    notes = [
        f"Medians and quartiles over {len(results[0].queries)} pictures, between the original and what a model draws "
        f"that was trained without the {made_by['removed']:,} highest-scoring of {made_by['train']:,} images. "
        f"ℓ2: of {made_by['distances']}. cos: of {made_by['encoder']}. The further apart, the better the scores."
    ]
    if at_steps:
        notes[0] += " t: the timestep at which the models' estimates of the picture are compared."
    return Table(heads, rows, notes=notes)


def folder_of(redrawn: RedrawnPictures, step: TrajectoryStep) -> Path:
    """Where the results for a step lie."""
    return redrawn.folder if step is None else redrawn.folder / f"step-{step}"


def keep(result: Counterfactual, folder: Path) -> None:
    """Write pictures.npz and counterfactual.json.

    pictures.npz: ids [Q], seeds [Q], methods [L], originals uint8 [Q, H, W, C], counterfactuals [L, Q, H, W, C].
    """
    arrays = {
        "ids": result.queries.ids,
        "seeds": result.queries.columns[SEED],
        "methods": np.array([one.method for one in result.effects]),
        "originals": result.originals,
        "counterfactuals": np.stack([one.pictures for one in result.effects]),
    }
    write_bytes(folder / "pictures.npz", as_npz(arrays))
    write_json(folder / "counterfactual.json", result.json())


def _pixels(pictures: NDArray[np.float32]) -> Pixels:
    """uint8 [B, H, W, C] from [B, C, H, W] in [−1, 1]."""
    pixels: Pixels = to_pixels(torch.from_numpy(pictures)).numpy()
    return pixels


def _summary(values: Floats) -> dict[str, Any]:
    low, median, high = np.percentile(values, [25, 50, 75]).tolist()
    return {"median": median, "quartiles": [low, high], "per_query": values.tolist()}
