"""Every noised copy apart: which kernel, which objective, how many timesteps; and what an objective's direction is.

The gradient of every objective is Jᵀu, with J the Jacobian of the output and u a vector over its numbers: the residual
for `simple`, the prediction for `square`, ones for `avg`, the noise for `interpolated(0)`, a random vector for `probe`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from findings import Finding
from study import Array, Measured, Study, middles
from torch import Tensor

from dtrak.contracts import Rows
from dtrak.gradients.copies import Copies, select_timesteps
from dtrak.gradients.objectives import get_objective
from dtrak.images.images import Images
from dtrak.kernels import Ridge
from dtrak.kernels.damping import GRIDS
from dtrak.kernels.rows import ArrayRows, CopyRows, OneRow
from dtrak.methods import METHODS, Gradients, Method
from dtrak.methods import Ridge as RidgeOf
from dtrak.tables import Cell, Entry, Table

OURS, STEP_TRAK = "step-trak", METHODS["step-trak"]


class OfMeans(Ridge):
    """The kernel of all copies, which scores the mean of an image's copies."""

    def coordinates(self, rows: Array) -> Array:
        return super().coordinates(rows.mean(1, keepdims=True))


def of_means(rows: Rows) -> OfMeans:
    return OfMeans.of(rows, scored=OneRow(rows))


def variant(name: str, **changes: object) -> Method:
    """step-trak with other fields, of its record or of the gradients that it needs."""
    needs = {field: value for field, value in changes.items() if field in Gradients.__dataclass_fields__}
    others = {field: value for field, value in changes.items() if field not in needs}
    return replace(STEP_TRAK, name=f"{OURS}-{name}", needs=replace(STEP_TRAK.needs, **needs), **others)


PLAIN = variant("not-squared", square=False, kernel=RidgeOf("rows"))  # with the rule for scores that are not squared
OBJECTIVES = ("simple", "square", "avg", "interpolated(0)", "probe")
TIMESTEPS = (2, 5, 10, 30)
AVERAGING = ("trak", "d-trak", "mixed-trak")
WAYS = ("averaged", "a kernel a copy", "pooled, means", "pooled, apart", "the same, unit length")
IMAGES_OF_U, IMAGES_OF_GAP = 200, 400
VARIANTS: dict[str, dict[str, object]] = {  # settings, and another `method`
    "as it is: K = 10, k = 4,096": {},
    "all layers": {"parameters": "all"},
    "the up blocks alone": {"parameters": r"^up_blocks\."},
    "scores as they are, not squared": {"method": PLAIN},
    "timesteps in the middles of equal intervals": {"timesteps": middles(10)},
    "both of these": {"method": PLAIN, "timesteps": middles(10)},
    "gradients of their own length": {"method": variant("own-lengths", unit=False)},
    "copies averaged": {"method": variant("of-means", kernel=of_means)},
    "a kernel for each copy": {"method": variant("of-each-copy", kernel=RidgeOf("trace", pooled=False))},
    "objective square": {"objective": "square"},
    "the sketch, all layers": {"projection": "sketch", "parameters": "all"},
    "noise of its own for each image": {"noise": "per-image"},
    "k = 1,024": {"projection_dim": 1024},
    "k = 2,048": {"projection_dim": 2048},
    "k = 8,192": {"projection_dim": 8192},
    "K = 2": {"timesteps": 2},
    "K = 2, five noises": {"timesteps": 2, "draws": 5},
    "K = 5": {"timesteps": 5},
    "K = 5, two noises": {"timesteps": 5, "draws": 2},
    "K = 30": {"timesteps": 30},
    "K = 100": {"timesteps": 100},
}

Rows = Mapping[str, Array]  # [rows, C, k] of "train" and of each kind of queries
Curves = list[Array]  # scores [Q, N] for every λ of the grid


def copies(study: Study) -> Finding:
    """Averaged or apart, a kernel a copy or one, own or unit length: each with the best λ in hindsight."""
    found: dict[str, dict[str, dict[str, Measured]]] = {}
    for objective in OBJECTIVES:
        found[objective] = study.of_copies(objective, scores_of_ways, WAYS, timesteps=middles(10))
    common = {objective: shared_direction(study, objective) for objective in OBJECTIVES}
    for kind in study.query_kinds:
        rows: list[list[Entry]] = [
            [
                objective,
                Cell(common[objective], f"{100 * common[objective]:.0f} %"),
                *(found[objective][kind][way].cell for way in WAYS),
            ]
            for objective in OBJECTIVES
        ]
        yield Table(["objective", "u in common", *WAYS], rows, f"Kernels of copies, K = 10, {kind} queries")
    gap, error = study.gap(lambda: loss_gap(study))
    cell = Cell(gap, f"{100 * gap:+.1f} ± {100 * error:.1f} %")
    yield Table(["", "more"], [["loss of held-out images", cell]], "What the model has learned of its own images")


def timesteps(study: Study) -> Finding:
    """Few and many timesteps for methods that average over them, with λ by rule."""
    rows = list[list[Entry]]()
    for k in TIMESTEPS:
        found = [study.measure(AVERAGING, queries=kind, timesteps=k, damping="auto") for kind in study.query_kinds]
        rows += [[f"{method}, K = {k}", *(one[method].cell for one in found)] for method in AVERAGING]
    yield Table(["method", *study.query_kinds], rows, "How many timesteps")


def variants(study: Study) -> Finding:
    """What each choice of step-trak is worth, with λ by rule and with the best λ."""
    rows = list[list[Entry]]()
    ways = dict(VARIANTS)
    if study.checkpoints:
        of_checkpoints = variant("of-checkpoints", models="checkpoints")
        ways |= {"the mean over four checkpoints": {"method": of_checkpoints, **study.checkpoints}}
    for name, settings in ways.items():
        method = settings.get("method", STEP_TRAK)
        asked = {"timesteps": 10} | {one: value for one, value in settings.items() if one != "method"}
        cells = [
            study.measure([method], queries=kind, **asked, damping=damping)[method.name]
            for kind in study.query_kinds
            for damping in ("auto", "best")
        ]
        rows.append([name, *(one.cell for one in cells)])
    heads = [f"{kind}, λ {way}" for kind in study.query_kinds for way in ("auto", "best")]
    yield Table([OURS, *heads], rows, "Choices of step-trak")


def scores_of_ways(rows: Rows, kinds: list[str]) -> dict[str, dict[str, Curves]]:
    """For each way and each kind of queries, the scores with every λ of the grid."""
    found: dict[str, dict[str, Curves]] = {way: {} for way in WAYS}
    stored, unit = (CopyRows([ArrayRows(rows["train"])], is_unit) for is_unit in (False, True))
    averaged, pooled, means, of_unit = Ridge.of(OneRow(stored)), Ridge.of(stored), of_means(stored), Ridge.of(unit)
    own = [Ridge.of(OneRow(stored, copy)) for copy in range(rows["train"].shape[1])]
    for kind in kinds:
        asked = rows[kind]
        found["averaged"][kind] = _curve(averaged, asked.mean(1, keepdims=True))
        of_each = [_curve(kernel, asked[:, [copy]]) for copy, kernel in enumerate(own)]
        found["a kernel a copy"][kind] = [np.mean(one, axis=0) for one in zip(*of_each, strict=True)]
        found["pooled, means"][kind] = _curve(means, asked)
        found["pooled, apart"][kind] = _curve(pooled, asked)
        found["the same, unit length"][kind] = _curve(of_unit, CopyRows([ArrayRows(asked)], unit=True)[:])
    return found


def _curve(kernel: Ridge, queries: Array) -> Curves:
    coordinates = kernel.coordinates(queries)
    return [kernel.scores(coordinates, one.absolute(kernel)) for one in GRIDS["log"]]


def loss_gap(study: Study) -> tuple[float, float]:
    """How much more loss held-out images have than training images, as a share of it, and the standard error.

    The mean over ten timesteps with four noises each, of every image its own.
    """
    steps = select_timesteps(middles(10), study.model.process.timesteps)
    sets = [study.benchmark.train.first(IMAGES_OF_GAP), study.benchmark.queries("validation")]
    train, held_out = (_losses(study, images, steps) for images in sets)  # [images, timesteps]
    scale = train.mean(0)
    relative = [(one / scale).mean(1) for one in (train, held_out)]
    error = sum(float(one.var()) / len(one) for one in relative) ** 0.5
    return float(relative[1].mean() - relative[0].mean()), error


def _losses(study: Study, images: Images, steps: tuple[int, ...]) -> Tensor:
    """The training loss of each image at each timestep, [images, timesteps]."""
    model = study.model
    clean = images.tensor(range(len(images))).to(model.device)
    drawn = Copies(steps, draws=4, noise="per-image")
    noises = torch.stack([drawn.noises(model.shape, image) for image in images.ids.tolist()])
    noises = noises.to(model.device)  # [N, 40, C, H, W]
    found = []
    for copy, (timestep, _) in enumerate(drawn.pairs()):
        at = torch.full((len(clean),), timestep, device=model.device)
        with torch.no_grad():
            predicted = model.predict_target(model.process.add_noise(clean, noises[:, copy], at), at, {})
        target = model.process.target(clean, noises[:, copy], at)
        found.append(get_objective("simple")(predicted, target, torch.ones(len(clean))).cpu())
    return torch.stack(found, 1).unflatten(1, (len(steps), 4)).mean(2)


def shared_direction(study: Study, objective: str) -> float:
    """‖mean_n u_n‖² ÷ mean_n ‖u_n‖² over training images, the mean over ten copies: 1 if u is the same for all."""
    model, images = study.model, study.benchmark.train.first(IMAGES_OF_U)
    clean = images.tensor(range(len(images))).to(model.device)
    drawn = Copies(select_timesteps(middles(10), model.process.timesteps))
    found = []
    for timestep, noise in zip(drawn.timesteps, drawn.noises(model.shape), strict=True):
        steps = torch.full((len(clean),), timestep, device=model.device)
        same = noise.to(model.device).expand_as(clean)
        with torch.no_grad():
            predicted = model.predict_target(model.process.add_noise(clean, same, steps), steps, {})
        u = _gradient(get_objective(objective), predicted, model.process.target(clean, same, steps))
        found.append(float(u.mean(0).square().sum() / u.square().sum(1).mean()))
    return float(np.mean(found))


def _gradient(objective: Callable[..., Tensor], predicted: Tensor, noise: Tensor) -> Tensor:
    """∂ℓ/∂ε_θ of each image, [B, …]: its direction u, but for a factor."""
    output = predicted.clone().requires_grad_()
    objective(output, noise, torch.ones(len(output), device=output.device)).sum().backward()
    assert output.grad is not None
    return output.grad.flatten(1)
