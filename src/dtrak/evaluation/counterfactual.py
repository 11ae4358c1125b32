"""Counterfactual evaluation: does a picture change when the model is trained without its highest-scoring images?

For each query, the N training images with the highest scores are removed, the model is trained again with the same
seed, and it draws again from the query's seed. For the original x and the counterfactual picture x′,

    ℓ2 = ‖x − x′‖₂ over pixels in [−1, 1],        cosine = e(x)·e(x′) / (‖e(x)‖ ‖e(x′)‖) of an encoder's embeddings e

For latent models, ℓ2 is the distance of the modes of the pictures' latents, without the scaling factor that the network
sees. The further apart x and x′ are, the better the scores.
At a timestep t of the trajectory, x and x′ are the two models' estimates x̂_0(x_t) of the finished picture, each from
the x_t of its own trajectory.

Queries, methods and timesteps that remove the same images share one retraining (`redrawing.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dtrak.engines import Engine
from dtrak.evaluation.redrawing import Drawn, Redrawing, TrajectoryStep, draw_again, draw_without
from dtrak.features.encoders import BATCH_SIZE, Encoder
from dtrak.features.trajectories import SEED
from dtrak.files import alone_in, as_npz, write_bytes, write_json
from dtrak.images.images import Images
from dtrak.models.sampling import to_pixels
from dtrak.runs.run import versions
from dtrak.tables import Cell, Entry, Table

CONTROL = "random"  # the method with which others are compared

Floats = NDArray[np.float64]
Pixels = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Effect:
    """How the queries change without the images that one method scores highest."""

    method: str
    pictures: Pixels  # [Q, H, W, C]
    l2: Floats  # [Q]
    cosine: Floats  # [Q]


@dataclass(frozen=True, eq=False)
class Counterfactual:
    """The effects of several methods, at one timestep of the trajectory."""

    step: TrajectoryStep
    queries: Images
    originals: Pixels  # [Q, H, W, C]
    effects: Sequence[Effect]
    settings: Mapping[str, Any]

    def json(self) -> dict[str, Any]:
        """Return the distances and the settings, as counterfactual.json holds them."""
        return {
            "step": self.step,
            "methods": {one.method: {"l2": _summary(one.l2), "cosine": _summary(one.cosine)} for one in self.effects},
            "queries": self.queries.ids.tolist(),
            "seeds": self.queries.columns[SEED].tolist(),
            **self.settings,
        }


def evaluate_counterfactual(
    redrawing: Redrawing,
    scores: Mapping[TrajectoryStep, Mapping[str, NDArray[np.float32]]],
    encoder: Encoder,
    engine: Engine,
    score_settings: Mapping[str, Any],
) -> list[Counterfactual]:
    """Retrain without the highest of the scores [Q, N], given by timestep and method, and compare the pictures.

    The results are written into the run's folder counterfactual/, those of a timestep T into its step-T/.
    """
    pairs = [(step, method) for step, by_method in scores.items() for method in by_method]
    removed = np.stack([highest(scores[step][method], redrawing.remove) for step, method in pairs])  # [L, Q, N]
    sets, which = unique_sets(removed)
    originals = draw_again(redrawing)
    with alone_in(redrawing.folder):
        drawn = draw_without(redrawing, sets, which, [step for step, _ in pairs], engine)
        results = []
        for step in scores:
            rows = [index for index, (one, _) in enumerate(pairs) if one == step]
            pictures = {pairs[row][1]: drawn[row] for row in rows}
            settings = {
                "train": len(redrawing.run.train_images),
                "removed": redrawing.remove,
                "retrainings": len(np.unique(which[rows])),
                "distances": "pixels in [−1, 1]" if redrawing.model.autoencoder is None else "unscaled latents",
                "encoder": encoder.name,
                "ddim_steps": redrawing.ddim_steps,
                "scores": dict(score_settings),
                "fingerprints": {"model": redrawing.model.fingerprint, "train": redrawing.run.train_images.fingerprint},
                "versions": versions(),
            }
            effects = compare(originals[step], pictures, encoder)
            result = Counterfactual(step, redrawing.queries, _pixels(originals[step].pictures), effects, settings)
            write_result(result, folder_of(redrawing, step))
            results.append(result)
    return results


def compare(originals: Drawn, drawn: Mapping[str, Drawn], encoder: Encoder) -> list[Effect]:
    """Measure how far each method's pictures are from the originals."""
    vectors = embeddings(encoder, _pixels(originals.pictures))
    effects = []
    for method, of_method in drawn.items():
        pixels = _pixels(of_method.pictures)
        cosine = cosines(vectors, embeddings(encoder, pixels))
        effects.append(Effect(method, pixels, l2_distances(originals.latents, of_method.latents), cosine))
    return effects


def highest(values: NDArray[np.float32], count: int) -> NDArray[np.bool_]:
    """Mark the `count` training images with each query's highest scores, bool [Q, N]; of equal ones, the first."""
    chosen = np.zeros(values.shape, dtype=np.bool_)
    np.put_along_axis(chosen, np.argsort(-values, axis=1, kind="stable")[:, :count], True, axis=1)
    return chosen


def unique_sets(removed: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return the M different sets [M, N] among the sets [L, Q, N], and the index of each in them, [L, Q]."""
    packed = np.packbits(removed.reshape(-1, removed.shape[-1]), axis=1)
    _, first, which = np.unique(packed, axis=0, return_index=True, return_inverse=True)
    return removed.reshape(-1, removed.shape[-1])[first], which.reshape(removed.shape[:2])


def l2_distances(pictures: NDArray[np.float32], others: NDArray[np.float32]) -> Floats:
    """Return ‖x − x′‖₂, [Q], of pictures or latents [Q, C, H, W] and as many others."""
    differences = pictures.astype(np.float64) - others
    distances: Floats = np.linalg.norm(differences.reshape(len(differences), -1), axis=1)
    return distances


def cosines(vectors: NDArray[np.float32], others: NDArray[np.float32]) -> Floats:
    """Return a·b / (‖a‖ ‖b‖), [Q], of embeddings [Q, d] and as many others."""
    a, b = vectors.astype(np.float64), others.astype(np.float64)
    found: Floats = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return found


def embeddings(encoder: Encoder, pictures: Pixels) -> NDArray[np.float32]:
    """Return the embeddings [Q, d] of pictures [Q, H, W, C]."""
    starts = range(0, len(pictures), BATCH_SIZE)
    return np.concatenate([encoder(pictures[start : start + BATCH_SIZE]) for start in starts])


def table(results: Sequence[Counterfactual]) -> Table:
    """Return medians and quartiles by timestep and method, and how much more than `random` each method changes."""
    at_steps = any(one.step is not None for one in results)
    paired = any(one.method == CONTROL for one in results[0].effects) and len(results[0].effects) > 1
    heads = ["method", *["t"] * at_steps]
    heads += [f"{name}{part}" for name in ("ℓ2", "cos") for part in ("", " 25%", " 75%")]
    heads += ["more ℓ2", "±"] * paired
    rows: list[list[Entry]] = []
    for result in results:
        for effect in result.effects:
            row: list[Entry] = [effect.method, *([result.step] if result.step is not None else [])]
            for values, form in ((effect.l2, ".2f"), (effect.cosine, ".3f")):
                row += [Cell(float(one), f"{one:{form}}") for one in np.percentile(values, [50, 25, 75])]
            if paired:
                row += _more_than_control(result, effect)
            rows.append(row)
    settings = results[0].settings
    notes = [
        f"Medians and quartiles over {len(results[0].queries)} pictures, between the original and what a model draws "
        f"that was trained without the {settings['removed']:,} highest-scoring of {settings['train']:,} images. "
        f"ℓ2: of {settings['distances']}. cos: of {settings['encoder']}. The further apart, the better the scores."
    ]
    if paired:
        notes[0] += f" more ℓ2: than {CONTROL} for the same pictures, the mean difference and its standard error."
    if at_steps:
        notes[0] += " t: the timestep at which the models' estimates of the picture are compared."
    return Table(heads, rows, notes=notes)


def _more_than_control(result: Counterfactual, effect: Effect) -> list[Entry]:
    """Return the mean over pictures of ℓ2 − ℓ2 of the control, and its standard error."""
    control = next(one for one in result.effects if one.method == CONTROL)
    if effect is control or len(effect.l2) < 2:
        return [Cell(None, "–"), Cell(None, "–")]
    more = effect.l2 - control.l2
    values = float(more.mean()), float(more.std(ddof=1) / len(more) ** 0.5)
    return [Cell(one, f"{one:.2f}") for one in values]


def folder_of(redrawing: Redrawing, step: TrajectoryStep) -> Path:
    """Return the folder for the results of a timestep."""
    return redrawing.folder if step is None else redrawing.folder / f"step-{step}"


def write_result(result: Counterfactual, folder: Path) -> None:
    """Write pictures.npz and counterfactual.json.

    pictures.npz holds ids [Q], seeds [Q], methods [L], originals uint8 [Q, H, W, C], counterfactuals [L, Q, H, W, C].
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
    """Convert pictures [B, C, H, W] in [−1, 1] to uint8 [B, H, W, C]."""
    pixels: Pixels = to_pixels(torch.from_numpy(pictures)).numpy()
    return pixels


def _summary(values: Floats) -> dict[str, Any]:
    low, median, high = np.percentile(values, [25, 50, 75]).tolist()
    return {"median": median, "quartiles": [low, high], "per_query": values.tolist()}
