"""Counterfactual evaluation: without the images that a method holds to have made a picture, is it drawn all the same?

For each query, its N highest-scoring training images are removed, the model is trained again with the same seed, and
draws again from the query's seed. For the original x and the counterfactual picture x′,

    ℓ2 = ‖x − x′‖₂ over pixels in [−1, 1],        cosine = e(x)·e(x′) / (‖e(x)‖ ‖e(x′)‖) of an encoder's embeddings e

The further apart they are, the better the method has found what the picture came from. At a timestep t of the
trajectory, x and x′ are what the two models take their own x_t for: x̂_0(x_t).

Queries, methods and steps that remove the same images share one retraining. Each is kept in jobs/ as it finishes, whole
or not at all, under a name that says what was trained and drawn: no question pays for it twice.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dtrak.data import Images
from dtrak.encoders import BATCH_SIZE, Encoder
from dtrak.engines import Engine
from dtrak.errors import DtrakError, UsageError
from dtrak.evaluation.jobs import Arrays, Job, Retraining, read_whole, retrained, threads_per_job
from dtrak.evaluation.tables import Cell, Entry, Table
from dtrak.files import alone_in, as_npz, clear_leftovers, write_bytes, write_json
from dtrak.journeys import SEED, Journeys, not_as_drawn, seeds_of
from dtrak.models import DiffusionModel
from dtrak.runs import Run, versions
from dtrak.sampling import BATCH, sample, to_pixels

COUNT = 60  # queries, unless the user says otherwise
SHARE = 1 / 5  # of the training images, removed for each

Floats = NDArray[np.float64]
Pixels = NDArray[np.uint8]
Step = int | None  # a timestep of the trajectory; None is its end, the finished picture


@dataclass(frozen=True, eq=False)
class Question:
    """Which pictures are asked about, when on their way, and how many images are removed for each."""

    run: Run
    model: DiffusionModel
    queries: Images
    remove: int
    steps: tuple[Step, ...]

    @property
    def seeds(self) -> list[int]:
        return seeds_of(self.queries)

    @property
    def ddim_steps(self) -> int:
        return self.run.recipe.generation.steps

    @property
    def folder(self) -> Path:
        return self.run.folder / "counterfactual"


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

    step: Step
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


def ask(
    run: Run, device: str, count: int | None = None, remove: int | None = None, steps: Sequence[int] = ()
) -> Question:
    """The question about a run's first generated pictures; refuses one that cannot be answered.

    How many pictures, and how many images are removed for each, is as the run's recipe says if not given.
    """
    model = run.model().to(device)
    usual = run.recipe.evaluation
    folder, train = run.folder / "generated", run.train_images
    if not folder.exists():
        raise UsageError(f"{run.folder} has no generated pictures yet: `dtrak generate {run.folder}` draws them")
    queries = run.query_images(str(folder))
    if SEED not in queries.columns:
        raise UsageError(f"{folder} does not say from which seeds it was drawn: `dtrak generate {run.folder}` does")
    if count is not None and not 1 <= count <= len(queries):
        raise UsageError(
            f"count {count}: {folder} holds {len(queries)} pictures (`dtrak generate {run.folder} --count {count}`)"
        )
    if remove is None:
        remove = usual.remove or max(1, round(SHARE * len(train)))
    if not 1 <= remove < len(train):
        raise UsageError(
            f"remove {remove}: at least one of the {len(train)} images of {train.source} must go, and one must stay"
        )
    for step in steps:
        _ = Journeys(model, queries, run.recipe.generation.steps, step).timesteps
    chosen = queries.first(usual.pictures or COUNT if count is None else count)
    return Question(run, model, chosen, remove, tuple(dict.fromkeys(steps)) or (None,))


def evaluate_counterfactual(
    question: Question,
    scores: Mapping[Step, Mapping[str, NDArray[np.float32]]],
    encoder: Encoder,
    engine: Engine,
    made_by: Mapping[str, Any],
) -> list[Counterfactual]:
    """Retrain and compare, from the scores [Q, N] of each method at each step; `made_by` says how they came about.

    Writes what it finds into the run's counterfactual/, or its step-T/ for the steps of the trajectory.
    """
    asked = [(step, method) for step, by_method in scores.items() for method in by_method]
    removed = np.stack([highest(scores[step][method], question.remove) for step, method in asked])  # [L, Q, N]
    sets, which = unique_sets(removed)
    originals = _originals(question)
    with alone_in(question.folder):
        clear_leftovers(question.folder / "jobs")
        drawn = _retrain(question, sets, which, [step for step, _ in asked], engine)
        results = []
        for step in scores:
            rows = [index for index, (one, _) in enumerate(asked) if one == step]
            pictures = {asked[row][1]: drawn[row] for row in rows}
            settings = {
                "train": len(question.run.train_images),
                "removed": question.remove,
                "retrainings": len(np.unique(which[rows])),
                "encoder": encoder.name,
                "ddim_steps": question.ddim_steps,
                "scores": dict(made_by),
                "fingerprints": {"model": question.model.fingerprint, "train": question.run.train_images.fingerprint},
                "versions": versions(),
            }
            effects = compare(originals[step], pictures, encoder)
            found = Counterfactual(step, question.queries, _pixels(originals[step]), effects, settings)
            keep(found, folder_of(question, step))
            results.append(found)
    return results


def compare(
    originals: NDArray[np.float32], pictures: Mapping[str, NDArray[np.float32]], encoder: Encoder
) -> list[Effect]:
    """How far each method's pictures [Q, C, H, W] are from the originals."""
    vectors = embeddings(encoder, _pixels(originals))
    effects = []
    for method, of_method in pictures.items():
        pixels = _pixels(of_method)
        cosine = cosines(vectors, embeddings(encoder, pixels))
        effects.append(Effect(method, pixels, l2_distances(originals, of_method), cosine))
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
    """‖x − x′‖₂ [Q] of pictures [Q, C, H, W] and as many others."""
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
        f"ℓ2: of pixels in [−1, 1]. cos: of {made_by['encoder']}. The further apart, the better the scores."
    ]
    if at_steps:
        notes[0] += " t: the timestep at which the models' estimates of the picture are compared."
    return Table(heads, rows, notes=notes)


def folder_of(question: Question, step: Step) -> Path:
    """Where the results for a step lie."""
    return question.folder if step is None else question.folder / f"step-{step}"


def keep(result: Counterfactual, folder: Path) -> None:
    """Write pictures.npz, boxplots.png, pictures.png and counterfactual.json.

    pictures.npz: ids [Q], seeds [Q], methods [L], originals uint8 [Q, H, W, C], counterfactuals [L, Q, H, W, C].
    """
    from dtrak.report.figures import boxplots, save_figure, side_by_side  # matplotlib is slow to load

    methods, effects = [one.method for one in result.effects], result.effects
    arrays = {
        "ids": result.queries.ids,
        "seeds": result.queries.columns[SEED],
        "methods": np.array(methods),
        "originals": result.originals,
        "counterfactuals": np.stack([one.pictures for one in effects]),
    }
    write_bytes(folder / "pictures.npz", as_npz(arrays))
    panels = {
        "ℓ2 distance to the original": {one.method: one.l2 for one in effects},
        f"cosine of {Path(result.made_by['encoder']).name}": {one.method: one.cosine for one in effects},
    }
    save_figure(boxplots(panels), folder / "boxplots.png")
    pictures = {"original": result.originals, **{one.method: one.pictures for one in effects}}
    captions = [f"seed {seed}" for seed in result.queries.columns[SEED]]
    save_figure(side_by_side(pictures, captions), folder / "pictures.png")
    write_json(folder / "counterfactual.json", result.json())


def _originals(question: Question) -> dict[Step, NDArray[np.float32]]:
    """What the run's model draws from the queries' seeds, at each step: [Q, C, H, W]."""
    seeds, batches = question.seeds, []
    for start in range(0, len(seeds), BATCH):
        drawn = sample(question.model, seeds[start : start + BATCH], question.ddim_steps, trajectory=True)
        assert drawn.estimates is not None
        arrays = {"pictures": drawn.pictures.cpu().numpy(), "estimates": drawn.estimates.cpu().numpy()}
        batches.append({step: _at(question, arrays, step) for step in {*question.steps, None}})
    originals = {step: np.concatenate([batch[step] for batch in batches]) for step in batches[0]}
    _check_drawn(question, originals[None])
    return originals


def _check_drawn(question: Question, originals: NDArray[np.float32]) -> None:
    """Refuse scores of other pictures than those that are drawn."""
    row = not_as_drawn(question.queries, torch.from_numpy(originals))
    if row is not None:
        raise UsageError(
            f"{question.queries.ids[row]} of {question.queries.source} is not what {question.model.source} draws "
            f"from seed {question.seeds[row]}: `dtrak generate {question.run.folder}` draws it again"
        )


def _retrain(
    question: Question, sets: NDArray[np.bool_], which: NDArray[np.int64], steps: Sequence[Step], engine: Engine
) -> NDArray[np.float32]:
    """What models draw that were trained without the sets [M, N]: the pictures [L, Q, C, H, W] of `which` [L, Q]."""
    run, seeds = question.run, np.array(question.seeds)
    jobs = [Job(m, draw=(*seeds[(which == m).any(0)].tolist(),), trajectory=True) for m in range(len(sets))]
    paths = {job: question.folder / "jobs" / f"{_name(question, sets[job.subset], job)}.npz" for job in jobs}
    missing = [job for job in jobs if _finished(question, job, paths[job]) is None]
    if missing:
        context = Retraining(run.recipe, run.train_images.in_memory(), ~sets, device=str(question.model.device))
        threads = threads_per_job(run.recipe, run.train_images.shape)
        for job, arrays in retrained(context, missing, engine, threads, len(jobs) - len(missing)):
            write_bytes(paths[job], as_npz(arrays))
    drawn = np.empty((*which.shape, *question.model.shape), dtype=np.float32)
    for job in jobs:
        found = _finished(question, job, paths[job])
        if found is None:
            raise DtrakError(f"{paths[job]} is gone or damaged: run the command again")
        for row, query in np.argwhere(which == job.subset):
            drawn[row, query] = _at(question, found, steps[row])[job.draw.index(seeds[query])]
    return drawn


def _name(question: Question, removed: NDArray[np.bool_], job: Job) -> str:
    """16 hexadecimal digits over all that the job's pictures depend on."""
    recipe = question.run.recipe
    parts = [
        recipe.model.model_dump(mode="json"),
        recipe.training.model_dump(mode="json"),
        question.run.train_images.fingerprint,
        question.ddim_steps,
        job.seed,
        job.draw,
    ]
    digest = blake2b(json.dumps(parts).encode(), digest_size=8)
    digest.update(np.packbits(removed).tobytes())
    return digest.hexdigest()


def _finished(question: Question, job: Job, path: Path) -> Arrays | None:
    """What a finished job has left; None if it is not there whole."""
    shape = (len(job.draw), *question.model.shape)
    return read_whole(path, {"pictures": shape, "estimates": (question.ddim_steps, *shape)})


def _at(question: Question, arrays: Arrays, step: Step) -> NDArray[np.float32]:
    """The pictures at a step, [B, C, H, W] in [−1, 1], from what a job gives."""
    if step is None:
        return arrays["pictures"]
    timesteps = question.model.ddim(question.ddim_steps).timesteps.tolist()
    estimates: NDArray[np.float32] = arrays["estimates"][timesteps.index(step)].clip(-1, 1)
    return estimates


def _pixels(pictures: NDArray[np.float32]) -> Pixels:
    """uint8 [B, H, W, C] from [B, C, H, W] in [−1, 1]."""
    pixels: Pixels = to_pixels(torch.from_numpy(pictures)).numpy()
    return pixels


def _summary(values: Floats) -> dict[str, Any]:
    low, median, high = np.percentile(values, [25, 50, 75]).tolist()
    return {"median": median, "quartiles": [low, high], "per_query": values.tolist()}
