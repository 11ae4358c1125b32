"""Counterfactual evaluation: does a picture change when the model is trained without its highest-scoring images?

For each query, the N training images with the highest scores are removed, the model is trained again with the same
seed, and it draws again from the query's seed. For the original x and the counterfactual picture x′,

    ℓ2 = ‖x − x′‖₂ over pixels in [−1, 1],        cosine = e(x)·e(x′) / (‖e(x)‖ ‖e(x′)‖) of an encoder's embeddings e

For latent models, ℓ2 is the distance of the modes of the pictures' latents, without the scaling factor that the network
sees. The further apart x and x′ are, the better the scores. At a timestep t of the trajectory, x and x′ are the two
models' estimates x̂_0(x_t) of the finished picture, each from the x_t of its own trajectory.

Queries, methods and timesteps that remove the same images share one training.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dtrak.attribution.answer import score
from dtrak.attribution.settings import Settings
from dtrak.engines import Engine
from dtrak.errors import UsageError
from dtrak.evaluation.training_jobs import Arrays, Retraining, TrainingJob, results
from dtrak.features.encoders import BATCH_SIZE, Encoder, load_encoder
from dtrak.features.trajectories import SEED, Trajectories, not_as_drawn, seeds_of
from dtrak.files import as_npz, write_bytes, write_json
from dtrak.fingerprints import Facts
from dtrak.images.images import Images, ImageSource
from dtrak.kernels.damping import Damping
from dtrak.methods import Method
from dtrak.methods.method import Gradients
from dtrak.models import DiffusionModel
from dtrak.models.sampling import sample, to_pixels
from dtrak.runs.run import TRAININGS, Run, versions
from dtrak.runs.run_questions import opened_run, question_of
from dtrak.tables import Cell, Entry, Table

DEFAULT_PICTURES = 60  # drawn again, unless the user or the recipe says otherwise
DEFAULT_SHARE = 1 / 5  # of the training images, removed for each picture
CONTROL = "random"  # the method with which others are compared

Floats = NDArray[np.float64]
Pixels = NDArray[np.uint8]
TrajectoryStep = int | None  # a timestep of the trajectory; None is its end, the finished picture


@dataclass(frozen=True, eq=False)
class Redrawing:
    """Which pictures are drawn again, how many images are removed for each, and at which timesteps to compare them."""

    run: Run
    model: DiffusionModel
    queries: Images
    remove: int
    steps: tuple[TrajectoryStep, ...]
    device: str  # as the user gave it: `cuda` means any GPU

    @property
    def seeds(self) -> list[int]:
        return seeds_of(self.queries)

    @property
    def prompts(self) -> list[str] | None:
        return None if self.model.conditions is None else self.model.conditions.texts(self.queries)

    @property
    def ddim_steps(self) -> int:
        return self.run.recipe.generation.steps

    def folder(self, step: TrajectoryStep) -> Path:
        """Return the folder for the results of a timestep."""
        return self.run.folder / "counterfactual" / ("" if step is None else f"step-{step}")


@dataclass(frozen=True, eq=False)
class Drawn:
    """Pictures, and the same pictures in the space in which their distances are measured."""

    pictures: NDArray[np.float32]  # [Q, C, H, W] in [−1, 1]
    latents: NDArray[np.float32]  # [Q, …], in the autoencoder's own scale; of a model without latents, the pictures

    @property
    def pixels(self) -> Pixels:
        """Return the pictures as uint8 [Q, H, W, C]."""
        return np.asarray(to_pixels(torch.from_numpy(self.pictures)).numpy())


def default_removed(total: int) -> int:
    """Return how many training images are removed for a picture, unless the user or the recipe says otherwise."""
    return max(1, round(DEFAULT_SHARE * total))


def choose_pictures(
    run: Run, device: str, count: int | None = None, remove: int | None = None, steps: Sequence[int] = ()
) -> Redrawing:
    """Choose the run's first generated pictures to be drawn again; refuse numbers and timesteps that are impossible.

    The recipe gives the number of pictures and of removed images if the arguments do not. Of `steps`, the nearest
    timesteps of the trajectory are taken.
    """
    model = run.model().to(device)
    run.check_model_is_the_recipes(model)
    folder, train, recipe = run.folder / "generated", run.train_images, run.recipe.evaluation
    if not folder.exists():
        raise UsageError(f"{run.folder} has no generated pictures yet: `dtrak generate {run.folder}` draws them")
    queries = run.query_images(str(folder))
    if SEED not in queries.columns:
        raise UsageError(
            f"{folder} does not say from which seeds its pictures were drawn: `dtrak generate {run.folder}` draws "
            "them again"
        )
    if count is not None and not 1 <= count <= len(queries):
        raise UsageError(
            f"count {count}: {folder} holds {len(queries)} pictures (`dtrak generate {run.folder} --count {count}`)"
        )
    if remove is None:
        remove = recipe.remove or default_removed(len(train))
    if not 1 <= remove < len(train):
        raise UsageError(
            f"remove {remove}: give a number from 1 to {len(train) - 1}, as {train.source} has {len(train)} images"
        )
    passed = [t for step in steps for t in Trajectories(model, queries, run.recipe.generation.steps, step).timesteps]
    chosen = queries.first(recipe.pictures or DEFAULT_PICTURES if count is None else count)
    return Redrawing(run, model, chosen, remove, tuple(dict.fromkeys(passed)) or (None,), device)


def draw_again(redrawing: Redrawing) -> dict[TrajectoryStep, Drawn]:
    """Draw the queries again with the run's model, and return them at each timestep."""
    guidance = redrawing.run.recipe.generation.guidance
    drawn = sample(redrawing.model, redrawing.seeds, redrawing.ddim_steps, True, redrawing.prompts, guidance)
    assert drawn.estimates is not None
    arrays = {"pictures": drawn.pictures.cpu().numpy(), "estimates": drawn.estimates.cpu().numpy()}
    originals = {step: _at(redrawing, arrays, step) for step in {*redrawing.steps, None}}
    row = not_as_drawn(redrawing.queries, torch.from_numpy(originals[None].pictures))
    if row is not None:  # its scores would be of another picture
        raise UsageError(
            f"{redrawing.queries.ids[row]} of {redrawing.queries.source} is not what {redrawing.model.source} draws "
            f"from seed {redrawing.seeds[row]}: `dtrak generate {redrawing.run.folder}` draws it again"
        )
    return originals


def draw_without(
    redrawing: Redrawing,
    sets: NDArray[np.bool_],
    which: NDArray[np.int64],
    steps: Sequence[TrajectoryStep],
    engine: Engine,
) -> list[Drawn]:
    """Train a model without each of the sets [M, N], and draw the queries with them.

    The l-th result, for the timestep `steps[l]`, holds for each query q what the model without set `which[l, q]` draws.
    """
    run, model, seeds, prompts = redrawing.run, redrawing.model, redrawing.seeds, redrawing.prompts
    jobs = []
    for subset in range(len(sets)):
        wanted = np.flatnonzero((which == subset).any(0))
        of_these = () if prompts is None else tuple(prompts[query] for query in wanted)
        jobs.append(TrainingJob(subset, 0, tuple(seeds[query] for query in wanted), of_these, trajectory=True))
    context = Retraining.of(run, model, ~sets, device=redrawing.device)
    pictures = np.empty((*which.shape, *model.image_shape), dtype=np.float32)
    latents = np.empty((*which.shape, *model.shape), dtype=np.float32)
    with results(run.folder / TRAININGS, context, jobs, engine) as result:
        for job in jobs:
            found = result(job)
            at_steps = {step: _at(redrawing, found, step) for step in set(steps)}
            for row, query in np.argwhere(which == job.subset):
                drawn, index = at_steps[steps[row]], job.draw.index(seeds[query])
                pictures[row, query], latents[row, query] = drawn.pictures[index], drawn.latents[index]
    return [Drawn(*row) for row in zip(pictures, latents, strict=True)]


def _at(redrawing: Redrawing, arrays: Arrays, step: TrajectoryStep) -> Drawn:
    """Return the pictures at a timestep, from the result of a job."""
    model = redrawing.model
    if step is None:
        pictures = arrays["pictures"]
        latents = model.encode(torch.from_numpy(pictures).to(model.device))
    else:
        timesteps = model.solver(redrawing.ddim_steps).timesteps.tolist()
        latents = torch.from_numpy(arrays["estimates"][timesteps.index(step)]).to(model.device)
        pictures = model.decode(latents).cpu().numpy()
    if model.autoencoder is None:
        return Drawn(pictures, pictures)
    return Drawn(pictures, model.autoencoder.unscaled(latents).cpu().numpy())


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


def counterfactual_run(
    redrawing: Redrawing,
    methods: Sequence[Method],
    settings: Settings,
    engine: Engine,
    *,
    cache: Path | None = None,
    gradient_engine: Engine | None = None,
) -> list[Counterfactual]:
    """Retrain the run's model without the images that methods score highest, and compare the pictures it draws.

    Methods that use gradients along a picture's trajectory have other scores at each timestep; all other methods have
    the same scores at every timestep.
    """
    run, damping = redrawing.run, Damping.parse(settings.damping)
    encoder = load_encoder(str(settings.encoder), str(redrawing.model.device))
    asked: Facts = {}

    def scored(chosen: Sequence[Method], step: TrajectoryStep) -> dict[str, NDArray[np.float32]]:
        nonlocal asked
        question = question_of(run, ImageSource(redrawing.queries), chosen, replace(settings, step=step))
        opened = opened_run(run, question, cache=cache, device=redrawing.device, engine=gradient_engine)
        asked = asked or question.asked(opened.facts)
        return {one.name: score(opened, replace(one, self_influence=False), [damping])[0][0] for one in chosen}

    first, *others = redrawing.steps
    scores = {first: scored(methods, first)}
    along = [one for one in methods if isinstance(one.needs, Gradients) and one.needs.queries == "trajectories"]
    for step in others:
        scores[step] = scores[first] | (scored(along, step) if along else {})
    return evaluate_counterfactual(redrawing, scores, encoder, engine, asked)


def evaluate_counterfactual(
    redrawing: Redrawing,
    scores: Mapping[TrajectoryStep, Mapping[str, NDArray[np.float32]]],
    encoder: Encoder,
    engine: Engine,
    question: Mapping[str, Any],
) -> list[Counterfactual]:
    """Retrain without the highest of the scores [Q, N], given by timestep and method, and compare the pictures.

    The results are written into the run's folder counterfactual/, those of a timestep T into its step-T/.
    """
    pairs = [(step, method) for step, by_method in scores.items() for method in by_method]
    removed = np.stack([highest(scores[step][method], redrawing.remove) for step, method in pairs])  # [L, Q, N]
    sets, which = unique_sets(removed)
    originals = draw_again(redrawing)
    drawn = draw_without(redrawing, sets, which, [step for step, _ in pairs], engine)
    found = []
    for step in scores:
        rows = [index for index, (one, _) in enumerate(pairs) if one == step]
        settings = {
            "train": len(redrawing.run.train_images),
            "removed": redrawing.remove,
            "retrainings": len(np.unique(which[rows])),
            "distances": "pixels in [−1, 1]" if redrawing.model.autoencoder is None else "unscaled latents",
            "encoder": encoder.name,
            "ddim_steps": redrawing.ddim_steps,
            "scores": dict(question.get("given", {}).get("settings", {})),
            "question": dict(question),
            "fingerprints": {"model": redrawing.model.fingerprint, "train": redrawing.run.train_images.fingerprint},
            "versions": versions(),
        }
        effects, vectors = [], embeddings(encoder, originals[step].pixels)
        for row in rows:
            pixels, l2 = drawn[row].pixels, l2_distances(originals[step].latents, drawn[row].latents)
            effects.append(Effect(pairs[row][1], pixels, l2, cosines(vectors, embeddings(encoder, pixels))))
        result = Counterfactual(step, redrawing.queries, originals[step].pixels, effects, settings)
        write_result(result, redrawing.folder(step))
        found.append(result)
    return found


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
                more = effect.l2 - next(one.l2 for one in result.effects if one.method == CONTROL)
                shown = effect.method != CONTROL and len(more) > 1
                numbers = [float(more.mean()), float(more.std(ddof=1) / len(more) ** 0.5)] if shown else [None, None]
                row += [Cell(one, "–" if one is None else f"{one:.2f}") for one in numbers]
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


def _summary(values: Floats) -> dict[str, Any]:
    low, median, high = np.percentile(values, [25, 50, 75]).tolist()
    return {"median": median, "quartiles": [low, high], "per_query": values.tolist()}
