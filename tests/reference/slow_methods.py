"""Every method by its definition: dense matrices, `numpy.linalg.solve`, and loops. Each returns scores [Q, N]."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from reference.slow_damping import absolute, by_agreement, by_rows, damping_of, dimension, eigenvalues
from reference.slow_ek_fac import ek_fac
from reference.slow_gradients import (
    KEPT,
    LATER_LAYERS,
    Array,
    Asked,
    chosen,
    ddim,
    gradient,
    noised,
    pictures,
    predicted,
    stream,
    value_of,
)

# kernels


def preconditioned(features: Array, damping: float, vectors: Array) -> Array:
    """(ΦᵀΦ + λI)⁻¹ v of each row v of [M, d]."""
    if features.shape[1] <= 1000:
        return np.linalg.solve(features.T @ features + damping * np.eye(features.shape[1]), vectors.T).T
    small = np.linalg.solve(features @ features.T + damping * np.eye(len(features)), features @ vectors.T)
    return (vectors - small.T @ features) / damping  # the same, by Woodbury's identity


def damped(asked: Asked, objective: str, model: Path | None = None) -> tuple[Array, float]:
    """Φ [N, d] of an objective and its λ, for which `auto` compares it with another objective."""
    train, other = asked.means(objective, asked.train, model), "square" if objective == "simple" else "simple"
    return train, absolute(
        asked.damping,
        eigenvalues(train),
        len(train),
        lambda: by_agreement(train, asked.means(other, asked.train, model)),
    )


def kernel(asked: Asked, objective: str, model: Path | None = None) -> Array:
    """τ(x)_n = φ(x)ᵀ (ΦᵀΦ + λI)⁻¹ φ_n."""
    train, damping = damped(asked, objective, model)
    return asked.means(objective, asked.queries, model) @ preconditioned(train, damping, train).T


def mixed_trak(asked: Asked) -> Array:
    """The mean over four objectives, whose kernels keep as many directions as the first."""
    first, led = damped(asked, "square")
    found = [kernel(asked, "square")]
    for objective in ("simple", "interpolated(0)", "avg"):
        train, spectrum = asked.means(objective, asked.train), eigenvalues(asked.means(objective, asked.train))
        damping = damping_of(spectrum, min(dimension(eigenvalues(first), led), len(spectrum) / 2))
        found.append(asked.means(objective, asked.queries) @ preconditioned(train, damping, train).T)
    return np.mean(found, axis=0)


def relative_if(asked: Asked) -> Array:
    """τ(x)_n / ‖(ΦᵀΦ + λI)⁻¹ φ_n‖."""
    train, damping = damped(asked, "simple")
    return kernel(asked, "simple") / np.linalg.norm(preconditioned(train, damping, train), axis=1)


def renormalized_if(asked: Asked) -> Array:
    """τ(x)_n / ‖φ_n‖."""
    return kernel(asked, "simple") / np.linalg.norm(asked.means("simple", asked.train), axis=1)


def step_trak(asked: Asked) -> Array:
    """s·|s| of s = Σ_c φ_c(x)ᵀ (Σ_nc φ_c(n) φ_c(n)ᵀ + λI)⁻¹ φ_c(n), with every φ_c at length 1."""
    objective = asked.objective or "simple"
    train, queries = (unit(asked.apart(objective, one, usual=LATER_LAYERS)) for one in (asked.train, asked.queries))
    rows, share = train.reshape(-1, train.shape[2]), 2.2e-3 if objective == "simple" else 2.2e-4
    copies = range(train.shape[1])
    by_trace = share * (rows**2).sum() / np.sqrt(len(copies))
    damping = absolute(asked.damping, eigenvalues(rows), len(train), lambda: by_trace)
    scores = sum(queries[:, c] @ preconditioned(rows, damping, train[:, c]).T for c in copies)
    return scores * np.abs(scores)


def das(asked: Asked) -> Array:
    """Mean over copies of (φ(x)ᵀ (ΦᵀΦ + λI)⁻¹ φ_n r_n / (1 − φ_nᵀ (ΦᵀΦ + λI)⁻¹ φ_n))², with a kernel for each copy.

    φ is the gradient of mean ε_θ, and r_n = √(mean (ε_θ − ε)²).
    """
    train, queries = (asked.apart("avg", images).swapaxes(0, 1) for images in (asked.train, asked.queries))
    found = []
    for copy, rows, of_queries in zip(asked.visible, train, queries, strict=True):
        damping = absolute(asked.damping, eigenvalues(rows), len(rows), lambda rows=rows: by_rows(rows))
        solved = preconditioned(rows, damping, rows)
        with torch.no_grad():
            outputs = [predicted(asked.model, one, *copy, asked.seed) for one in pictures(asked.train)]
        residuals = [float((output - noise).square().mean().sqrt()) for output, noise in outputs]
        found.append((of_queries @ solved.T * residuals / (1 - (rows * solved).sum(1))) ** 2)
    return np.mean(found, axis=0)


def journey_trak(asked: Asked, model: Path | None = None) -> Array:
    """TRAK, with the gradients of queries at the x̂_0(x_t) of their trajectories; if at one step, of ten draws."""
    model, features, seeds = model or asked.model, [], np.load(asked.queries)["seed"].tolist()
    for seed, (_, label) in zip(seeds, pictures(asked.queries), strict=True):
        estimates = ddim(asked.model, seed, asked.ddim_steps, label)
        passed = {t: (clean, label) for t, clean in estimates.items() if asked.step in (None, t)}
        copies = product(passed, range(asked.draws if asked.step is None else 10))
        values = [value_of("simple", *predicted(model, passed[t], t, draw, asked.seed), t) for t, draw in copies]
        features.append(gradient(model, torch.stack(values).mean())[chosen(model, asked.parameters or "")])
    train, damping = damped(asked, "simple", model)
    return np.stack(features) @ preconditioned(train, damping, train).T


# without a kernel


def unit(vectors: Array) -> Array:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def dots(rows: Callable[[Path], Array], asked: Asked) -> Array:
    return rows(asked.queries) @ rows(asked.train).T


def pixels(images: Path, step: int = 1) -> Array:
    """With step 2, this is what `cases.every_second_pixel` makes of them."""
    return np.stack([clean[0, ::step, ::step].flatten().numpy() for clean, _ in pictures(images)])


def gradient_dot(asked: Asked, model: Path | None = None) -> Array:
    return dots(lambda images: asked.means("simple", images, model), asked)


def gradient_cosine(asked: Asked, model: Path | None = None) -> Array:
    return dots(lambda images: unit(asked.means("simple", images, model)), asked)


def of_unit_copies(asked: Asked, model: Path) -> Array:
    return dots(lambda images: unit(asked.apart("simple", images, model)).mean(1), asked)


def random_scores(asked: Asked) -> Array:
    sizes = len(pictures(asked.queries)), len(pictures(asked.train))
    return stream(asked.seed, "random").standard_normal(sizes, dtype=np.float32)


def patches(image: Array, scale: int) -> Array:
    """The patch around every place of an image [8, 8] or its half, [places, 9], with NaN beyond the border."""
    small = image.reshape(8 // scale, scale, 8 // scale, scale).mean((1, 3)) * scale
    return sliding_window_view(np.pad(small, 1, constant_values=np.nan), (3, 3)).reshape(-1, 9)


def nda(asked: Asked) -> Array:
    """τ(x)_n = mean over copies, scales and patches p of x_t of  Σ_q P(patch q of y_n | p)."""
    found = np.zeros((len(pictures(asked.queries)), len(pictures(asked.train))))
    for x, picture in enumerate(pictures(asked.queries)):
        for (t, draw), scale in product(asked.visible, (1, 2)):
            train = np.stack([patches(KEPT[t] ** 0.5 * clean.numpy(), scale) for clean, _ in pictures(asked.train)])
            of_copy = patches(noised(picture, t, draw, asked.seed)[0].numpy(), scale)
            for patch in of_copy:
                squares = np.nansum((train - patch) ** 2, axis=2)
                squares[(np.isnan(train) != np.isnan(patch)).any(2)] = np.inf  # another part is beyond the border
                weights = np.exp((squares.min() - squares) / (2 * (1 - KEPT[t]))).sum(1)
                found[x] += weights / weights.sum() / len(of_copy) / len(asked.visible) / 2
    return found


# several models


def over_checkpoints(score: Callable[[Asked, Path], Array], asked: Asked) -> Array:
    """The mean over evenly spaced checkpoints, of which the last is always one."""
    every = sorted(asked.checkpoints.iterdir(), key=lambda folder: int(folder.name.removeprefix("step-")))
    ends = np.linspace(0, len(every), min(asked.checkpoint_count, len(every)) + 1)[1:]
    return np.mean([score(asked, every[round(end) - 1]) for end in ends], axis=0)


def over_retrained(score: Callable[[Asked, Path], Array], asked: Asked) -> Array:
    """The mean over the models that were kept, one for each subset."""
    every = sorted((asked.retrained / "retrained").iterdir(), reverse=True)
    return np.mean([score(asked, path) for path in {path.name[:10]: path for path in every}.values()], axis=0)


def outcomes(asked: Asked) -> tuple[Array, Array]:
    """Which images each retrained model had [S, N], and the losses of the queries [S, Q] as means over seeds."""
    losses = np.load(asked.retrained / "generated_losses.npy")
    return np.load(asked.retrained / "masks.npy").astype(np.float64), losses.mean(1, dtype=np.float64)


def empirical_influence(asked: Asked) -> Array:
    """Mean loss without the image − mean loss with it."""
    masks, losses = outcomes(asked)
    return np.array([[y[one == 0].mean() - y[one == 1].mean() for one in masks.T] for y in losses.T])


def datamodel(asked: Asked) -> Array:
    """−w of the ridge regression loss ≈ w·mask + c, of the strength that predicts left-out models best."""
    masks, losses = outcomes(asked)
    inputs, every, found = np.c_[masks, np.ones(len(masks))], np.arange(len(masks)), []

    def fitted(rows: Array, y: Array, strength: float) -> Array:
        penalty = np.diag([strength] * masks.shape[1] + [0.0])
        return np.linalg.solve(inputs[rows].T @ inputs[rows] + penalty, inputs[rows].T @ y[rows])

    for y in losses.T:
        errors = {
            strength: np.mean([(inputs[m] @ fitted(every[every != m], y, strength) - y[m]) ** 2 for m in every])
            for strength in np.logspace(-2, 5, 22)
        }
        found.append(-fitted(every, y, min(errors, key=lambda strength: errors[strength]))[:-1])
    return np.array(found)


def datamodel_lasso(asked: Asked) -> Array:
    """The same with ‖loss − w·mask − c‖²/2S + α‖w‖₁, by proximal gradients; five folds choose α of a hundred."""
    masks, losses = outcomes(asked)

    def fitted(x: Array, y: Array, strengths: Array) -> Array:
        """w of every strength, [A, N]."""
        x, y, w = x - x.mean(0), y - y.mean(), np.zeros((len(strengths), x.shape[1]))
        rate = len(x) / np.linalg.norm(x, 2) ** 2
        for _ in range(2000):
            w = w - rate * (w @ x.T - y) @ x / len(x)
            w = np.sign(w) * np.maximum(np.abs(w) - rate * strengths[:, None], 0)
        return w

    found = []
    for y in losses.T:
        largest = np.abs((masks - masks.mean(0)).T @ (y - y.mean())).max() / len(y)
        strengths, errors = largest * np.geomspace(1, 1e-3, 100), np.zeros(100)
        for left in np.array_split(np.arange(len(y)), 5):
            x, rest = np.delete(masks, left, 0), np.delete(y, left)
            w = fitted(x, rest, strengths)
            errors += ((w @ (masks[left] - x.mean(0)).T + rest.mean() - y[left]) ** 2).mean(1)
        found.append(-fitted(masks, y, strengths[[errors.argmin()]])[0])
    return np.array(found)


METHODS: dict[str, Callable[[Asked], Array]] = {
    "random": random_scores,
    "raw-pixel-dot": lambda asked: dots(pixels, asked),
    "raw-pixel-cosine": lambda asked: dots(lambda images: unit(pixels(images)), asked),
    "clip-dot": lambda asked: dots(lambda images: pixels(images, 2), asked),
    "clip-cosine": lambda asked: dots(lambda images: unit(pixels(images, 2)), asked),
    "nda": nda,
    "gradient-dot": gradient_dot,
    "gradient-cosine": gradient_cosine,
    "tracin": lambda asked: over_checkpoints(gradient_dot, asked),
    "gas": lambda asked: over_checkpoints(gradient_cosine, asked),
    "retrac": lambda asked: over_checkpoints(of_unit_copies, asked),
    "trak": lambda asked: kernel(asked, "simple"),
    "d-trak": lambda asked: kernel(asked, asked.objective or "square"),
    "mixed-trak": mixed_trak,
    "step-trak": step_trak,
    "relative-if": relative_if,
    "renormalized-if": renormalized_if,
    "ek-fac": ek_fac,
    "das": das,
    "journey-trak": journey_trak,
    "trak-ensemble": lambda asked: over_retrained(lambda asked, model: kernel(asked, "simple", model), asked),
    "d-trak-ensemble": lambda asked: over_retrained(lambda asked, model: kernel(asked, "square", model), asked),
    "journey-trak-ensemble": lambda asked: over_retrained(journey_trak, asked),
    "empirical-influence": empirical_influence,
    "datamodel": datamodel,
    "datamodel-lasso": datamodel_lasso,
}
