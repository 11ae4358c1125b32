"""Every method against its formula, written out from the definitions: gradients one image and timestep at a time by
autograd, explicit inverses in float64, plain loops over retrained models. And the laws that the formulas obey."""

import re
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

import dtrak
import tiny
from dtrak.damping import Damping
from dtrak.encoders import load_encoder
from dtrak.errors import UsageError
from dtrak.features import FeatureStore
from dtrak.kernels import decompose
from dtrak.methods import METHODS
from dtrak.methods.inputs import InMemory, RetrainedLosses, Vectors
from dtrak.models import ddpm
from dtrak.noise import gaussian
from test_benchmark import TRAIN, VALIDATION, random_halves, write_benchmark

Array = NDArray[np.float64]
Copy = tuple[Tensor, int, int]  # a clean image, its timestep and the draw of its noise

QUERIES = VALIDATION.select([3, 0, 2])
LAMBDA = 0.01
EXACT: dict[str, Any] = {"timesteps": 2, "projection": "identity", "damping": f"absolute:{LAMBDA}"}
# Numbers for each image: fewer than there are images, so that ΦᵀΦ is the smaller matrix, and more.
PRIMAL, DUAL = "conv_norm_out", "conv_in|conv_out|time_embedding"
SIMILARITY = ("raw-pixel-dot", "raw-pixel-cosine", "clip-dot", "clip-cosine", "gradient-dot", "gradient-cosine")
CHECKPOINTS = ("tracin", "gas")
KERNEL = ("trak", "d-trak", "relative-if", "renormalized-if")
ENSEMBLES = ("trak-ensemble", "d-trak-ensemble")
OUTCOMES = ("empirical-influence", "datamodel", "datamodel-lasso")
JOURNEYS = ("journey-trak", "journey-trak-ensemble")


# the definitions


def schedule() -> Array:
    """ᾱ_t of DDPM: β rises linearly from 1e-4 to 0.02."""
    return np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))


def loss(model: dtrak.DiffusionModel, copies: Iterable[Copy], objective: str = "simple") -> Tensor:
    """The mean over copies of mean (ε_θ − ε)², or of mean ε_θ²."""
    model.network.eval()
    losses = []
    for clean, t, draw in copies:
        noise = gaussian(model.shape, 0, t, draw).to(clean.dtype)
        signal, sigma = schedule()[t] ** 0.5, (1 - schedule()[t]) ** 0.5
        noisy = signal * clean + sigma * noise
        answer = model.network(noisy[None], torch.tensor([t])).sample[0]
        is_noise = model.scheduler.config.prediction_type == "epsilon"
        predicted = answer if is_noise else signal * answer + sigma * noisy
        losses.append((predicted - noise if objective == "simple" else predicted).square().mean())
    return torch.stack(losses).mean()


def exact_gradient(
    model: dtrak.DiffusionModel, copies: Iterable[Copy], objective: str = "simple", parameters: str = ""
) -> Array:
    """∇_θ of that mean for one image, [d]."""
    chosen = [value for name, value in model.network.named_parameters() if re.search(parameters, name)]
    gradients = torch.autograd.grad(loss(model, copies, objective), chosen)
    return torch.cat([gradient.flatten() for gradient in gradients]).double().numpy()


def exact_features(
    model: dtrak.DiffusionModel, images: dtrak.Images, objective: str = "simple", parameters: str = ""
) -> Array:
    """Φ [B, d] at the two timesteps of `EXACT`."""
    return np.stack(
        [
            exact_gradient(model, [(clean, 0, 0), (clean, 500, 0)], objective, parameters)
            for clean in images.tensor(range(len(images)))
        ]
    )


@cache
def features_of_seed(seed: int, objective: str = "simple", parameters: str = "") -> tuple[Array, Array]:
    """Φ of the training images and of the queries under the tiny model of this seed."""
    model = tiny.unet(seed=seed)
    return exact_features(model, TRAIN, objective, parameters), exact_features(model, QUERIES, objective, parameters)


def dots(train: Array, queries: Array) -> Array:
    return np.array([[query @ n for n in train] for query in queries])


def cosines(train: Array, queries: Array) -> Array:
    return np.array([[query @ n / np.sqrt((query @ query) * (n @ n)) for n in train] for query in queries])


def kernel(train: Array, queries: Array, damping: float = LAMBDA) -> Array:
    return queries @ np.linalg.inv(train.T @ train + damping * np.eye(train.shape[1])) @ train.T


def small_kernel(train: Array, queries: Array, damping: float = LAMBDA) -> Array:
    """The same, as (ΦᵀΦ + λI)⁻¹Φᵀ = Φᵀ(ΦΦᵀ + λI)⁻¹, for more numbers than can be inverted."""
    return queries @ train.T @ np.linalg.inv(train @ train.T + damping * np.eye(len(train)))


def relative(train: Array, queries: Array) -> Array:
    inverse = np.linalg.inv(train.T @ train + LAMBDA * np.eye(train.shape[1]))
    return np.array([[query @ inverse @ n / np.linalg.norm(inverse @ n) for n in train] for query in queries])


def renormalized(train: Array, queries: Array) -> Array:
    inverse = np.linalg.inv(train.T @ train + LAMBDA * np.eye(train.shape[1]))
    return np.array([[query @ inverse @ n / np.linalg.norm(n) for n in train] for query in queries])


def assert_close(found: NDArray[Any], expected: Array) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


# one model


def test_every_method_of_the_contract_is_there() -> None:
    assert {*SIMILARITY, *CHECKPOINTS, *KERNEL, *ENSEMBLES, *OUTCOMES, *JOURNEYS, "random"} == set(METHODS)
    for name, method in METHODS.items():
        assert method.name == name
        assert method.summary
        assert method.needs
        assert method.cost


@pytest.mark.parametrize(("method", "formula"), [("raw-pixel-dot", dots), ("raw-pixel-cosine", cosines)])
def test_raw_pixels(method: str, formula: Callable[[Array, Array], Array]) -> None:
    """Of pixels in [−1, 1]."""
    found = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method=method)
    train, queries = (
        images.pixels(range(len(images))).reshape(len(images), -1) / 127.5 - 1 for images in (TRAIN, QUERIES)
    )
    np.testing.assert_allclose(found.values, formula(train, queries), rtol=1e-5, atol=1e-5)


def test_embeddings() -> None:
    found = dtrak.attribute(
        tiny.unet(), TRAIN, QUERIES, method=["clip-dot", "clip-cosine"], encoder="efficientnet-lite0"
    )
    encoder = load_encoder("efficientnet-lite0")
    train, queries = (encoder(images.pixels(range(len(images)))).astype(np.float64) for images in (TRAIN, QUERIES))
    np.testing.assert_allclose(found["clip-dot"].values, dots(train, queries), rtol=1e-4)
    np.testing.assert_allclose(found["clip-cosine"].values, cosines(train, queries), rtol=1e-4)


@pytest.mark.parametrize(("method", "formula"), [("gradient-dot", dots), ("gradient-cosine", cosines)])
def test_gradients(method: str, formula: Callable[[Array, Array], Array]) -> None:
    found = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method=method, **EXACT)
    assert_close(found.values, formula(*features_of_seed(0)))


@pytest.mark.parametrize("parameters", [PRIMAL, DUAL])
@pytest.mark.parametrize(
    ("method", "objective", "formula"),
    [
        ("trak", "simple", kernel),
        ("d-trak", "square", kernel),
        ("relative-if", "simple", relative),
        ("renormalized-if", "simple", renormalized),
    ],
)
def test_kernel_methods(method: str, objective: str, formula: Callable[[Array, Array], Array], parameters: str) -> None:
    found = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method=method, parameters=parameters, **EXACT)
    assert_close(found.values, formula(*features_of_seed(0, objective, parameters)))


def test_the_average_runs_over_all_noises_of_all_timesteps() -> None:
    """K = 2 timesteps with Z = 3 noises each."""
    model = tiny.unet()
    found = dtrak.attribute(model, TRAIN, QUERIES, method="gradient-dot", draws=3, parameters=DUAL, **EXACT)
    train, queries = (
        np.stack(
            [
                exact_gradient(model, [(clean, t, z) for t in (0, 500) for z in range(3)], parameters=DUAL)
                for clean in images.tensor(range(len(images)))
            ]
        )
        for images in (TRAIN, QUERIES)
    )
    assert_close(found.values, dots(train, queries))


def test_random_scores_are_fixed_by_the_seed_alone() -> None:
    first, again, other = (
        dtrak.attribute(tiny.unet(), TRAIN, TRAIN, method="random", seed=seed).values for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert first.shape == (12, 12)
    assert abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 0.3
    assert abs(first.mean()) < 4 / 12
    assert first.std() == pytest.approx(1, abs=0.25)


# several models


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight steps of a training: the model at step 10·s is that of seed s."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for seed in range(1, 9):
        ddpm.save(tiny.unet(seed=seed), folder / f"step-{10 * seed:06d}")
    return folder


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three subsets of which models were kept; the third with two training seeds, of which the first counts."""
    models = {
        "subset-000-seed-0": tiny.unet(seed=2),
        "subset-001-seed-0": tiny.unet(seed=4),
        "subset-004-seed-0": tiny.unet(seed=6),
        "subset-004-seed-1": tiny.unet(seed=1),
    }
    return write_benchmark(tmp_path_factory.mktemp("benchmark"), models)


def test_models_on_disk_are_the_models_that_were_saved(checkpoints: Path, benchmark: Path) -> None:
    for folder in (checkpoints / "step-000020", benchmark / "retrained" / "subset-000-seed-0"):
        assert dtrak.load_model(str(folder)).fingerprint == tiny.unet(seed=2).fingerprint


@pytest.mark.parametrize(
    ("count", "seeds"), [(4, (2, 4, 6, 8)), (2, (4, 8)), (1, (8,))], ids=["four", "two", "the last"]
)
def test_tracin_and_gas_are_means_over_evenly_spaced_checkpoints(
    checkpoints: Path, count: int, seeds: tuple[int, ...]
) -> None:
    asked = {} if count == 4 else {"checkpoint_count": count}
    found = dtrak.attribute(
        tiny.unet(), TRAIN, QUERIES, method=["tracin", "gas"], checkpoints=checkpoints, **asked, **EXACT
    )
    assert_close(found["tracin"].values, np.mean([dots(*features_of_seed(seed)) for seed in seeds], axis=0))
    assert_close(found["gas"].values, np.mean([cosines(*features_of_seed(seed)) for seed in seeds], axis=0))


def test_each_checkpoint_has_a_projection_of_its_own(tmp_path: Path) -> None:
    """The same weights twice: other features, nearly the same dot products."""
    for name in ("step-1", "step-2"):
        ddpm.save(tiny.unet(), tmp_path / "checkpoints" / name)
    found = dtrak.attribute(
        tiny.unet(),
        TRAIN,
        TRAIN,
        method="tracin",
        checkpoints=tmp_path / "checkpoints",
        cache=tmp_path / "cache",
        timesteps=2,
        projection_dim=2048,
    )
    one, other = (
        FeatureStore.open(tmp_path / "cache" / name / "train-simple").numpy().astype(np.float64)
        for name in ("step-1", "step-2")
    )
    exact = features_of_seed(0)[0]
    norms = np.linalg.norm(exact, axis=1)
    assert np.abs(np.sum(one * other, axis=1) / norms**2).max() < 0.2
    # The variance of a dot product is at most 2‖g‖²‖h‖²/k.
    for sketched in (one, other):
        assert (
            np.abs(dots(sketched, sketched) - dots(exact, exact)) < 5 * (2 / 2048) ** 0.5 * norms * norms[:, None]
        ).all()
    assert_close(found.values, (dots(one, one) + dots(other, other)) / 2)


def test_checkpoints_of_a_model_that_never_moved_are_the_model(tmp_path: Path) -> None:
    for step in (1, 2):
        ddpm.save(tiny.unet(), tmp_path / f"step-{step}")
    found = dtrak.attribute(
        tiny.unet(),
        TRAIN,
        QUERIES,
        method=["tracin", "gradient-dot", "gas", "gradient-cosine"],
        checkpoints=tmp_path,
        **EXACT,
    )
    for of_checkpoints, of_model in (("tracin", "gradient-dot"), ("gas", "gradient-cosine")):
        np.testing.assert_allclose(found[of_checkpoints].values, found[of_model].values, rtol=1e-5)


@pytest.mark.parametrize(("method", "objective"), [("trak-ensemble", "simple"), ("d-trak-ensemble", "square")])
def test_ensembles_are_means_over_retrained_models(benchmark: Path, method: str, objective: str) -> None:
    """Each over all training images, whichever of them it has seen."""
    found = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method=method, retrained=benchmark, **EXACT)
    each = [small_kernel(*features_of_seed(seed, objective)) for seed in (2, 4, 6)]
    assert_close(found.values, np.mean(each, axis=0))


def test_each_model_of_an_ensemble_has_a_projection_of_its_own(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", {"subset-000-seed-0": tiny.unet(), "subset-001-seed-0": tiny.unet()})
    found = dtrak.attribute(
        tiny.unet(),
        TRAIN,
        QUERIES,
        method="trak-ensemble",
        retrained=folder,
        cache=tmp_path / "cache",
        timesteps=2,
        projection_dim=512,
        damping=f"absolute:{LAMBDA}",
    )
    stores = [sorted((tmp_path / "cache" / f"subset-00{s}-seed-0").iterdir()) for s in (0, 1)]
    assert [[path.name.split("-")[0] for path in paths] for paths in stores] == [["queries", "train"]] * 2
    features = [[FeatureStore.open(path).numpy().astype(np.float64) for path in paths] for paths in stores]
    assert not np.allclose(features[0][1], features[1][1])
    assert_close(found.values, np.mean([small_kernel(train, queries) for queries, train in features], axis=0))


# what retrained models made of the queries


def loops(masks: NDArray[np.bool_], losses: NDArray[Any]) -> Array:
    """Mean loss without n − mean loss with n; nothing to compare where n was always or never in."""
    found = np.zeros((losses.shape[1], masks.shape[1]))
    for query, image in np.ndindex(found.shape):
        with_it = [float(losses[s, query]) for s in range(len(masks)) if masks[s, image]]
        without = [float(losses[s, query]) for s in range(len(masks)) if not masks[s, image]]
        if with_it and without:
            found[query, image] = sum(without) / len(without) - sum(with_it) / len(with_it)
    return found


def ridge(masks: NDArray[np.bool_], losses: Array, strength: float) -> tuple[Array, float]:
    """w and c of the smallest Σ (w·mask + c − loss)² + strength ‖w‖², by its normal equations."""
    inputs = np.column_stack([masks, np.ones(len(masks))]).astype(np.float64)
    penalty = np.diag([strength] * masks.shape[1] + [0.0])
    solution = np.linalg.solve(inputs.T @ inputs + penalty, inputs.T @ losses)
    return solution[:-1], float(solution[-1])


def leave_one_out_error(masks: NDArray[np.bool_], losses: Array, strength: float) -> float:
    errors = []
    for left_out in range(len(masks)):
        others = np.arange(len(masks)) != left_out
        weights, constant = ridge(masks[others], losses[others], strength)
        errors.append((masks[left_out] @ weights + constant - losses[left_out]) ** 2)
    return float(np.mean(errors))


def score_outcomes(method: str, masks: NDArray[np.bool_], losses: NDArray[Any]) -> NDArray[np.float32]:
    return METHODS[method].formula(RetrainedLosses(masks, losses), Damping())


def linear_world(
    subsets: int, influence: Array, noise: float = 0.0, seed: int = 0
) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
    """Retrained models whose losses are a constant minus the influence of their images, plus noise.

    Images are in or out independently: halves of one size tell influences only up to a constant.
    """
    random = np.random.default_rng(seed)
    masks = random.random((subsets, influence.shape[1])) < 0.5
    losses = 3 - masks @ influence.T + noise * random.normal(size=(subsets, len(influence)))
    return masks, losses.astype(np.float32)


def test_empirical_influence_is_a_difference_of_means(benchmark: Path) -> None:
    found = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method="empirical-influence", retrained=benchmark)
    masks, losses = np.load(benchmark / "masks.npy"), np.load(benchmark / "losses.npy")
    np.testing.assert_allclose(found.values, loops(masks, losses.mean(1)[:, [3, 0, 2]]), rtol=1e-4, atol=1e-6)


def test_empirical_influence_of_an_image_that_was_always_or_never_in_is_nothing() -> None:
    masks, losses = linear_world(20, np.ones((2, 6)))
    masks[:, 1], masks[:, 4] = True, False
    found = score_outcomes("empirical-influence", masks, losses)
    np.testing.assert_allclose(found, loops(masks, losses), rtol=1e-4, atol=1e-6)
    assert (found[:, [1, 4]] == 0).all()


def test_the_datamodel_is_the_ridge_regression_that_predicts_left_out_models_best() -> None:
    """Its strength is another for losses with more noise."""
    random = np.random.default_rng(7)
    masks = random_halves(40, 12, seed=5)
    losses = 3 - masks @ random.normal(size=(12, 4)) + random.normal(size=(40, 4)) * [0.1, 1, 3, 10]
    found = score_outcomes("datamodel", masks, losses)
    strengths = np.logspace(-2, 5, 22)
    chosen = []
    for query in range(4):
        errors = [leave_one_out_error(masks, losses[:, query], strength) for strength in strengths]
        chosen.append(int(np.argmin(errors)))
        weights, _ = ridge(masks, losses[:, query], strengths[chosen[-1]])
        np.testing.assert_allclose(found[query], -weights, rtol=1e-4, atol=1e-6)
    assert len(set(chosen)) > 1


def test_datamodels_take_the_benchmarks_losses(benchmark: Path) -> None:
    found = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method=["datamodel", "datamodel-lasso"], retrained=benchmark)
    masks, losses = np.load(benchmark / "masks.npy"), np.load(benchmark / "losses.npy").mean(1)[:, [3, 0, 2]]
    for name, scores in found.items():
        np.testing.assert_allclose(scores.values, score_outcomes(name, masks, losses), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", OUTCOMES)
def test_a_known_linear_datamodel_is_recovered(method: str) -> None:
    """With its sign: what lowers a loss has a positive score."""
    influence = np.random.default_rng(3).normal(size=(3, 20))
    found = score_outcomes(method, *linear_world(2000, influence, noise=0.1))
    # To the mean of an image's absence, all others are noise.
    np.testing.assert_allclose(found, influence, atol=0.4 if method == "empirical-influence" else 0.02)


def test_the_lasso_recovers_a_sparse_datamodel() -> None:
    influence = np.zeros((2, 30))
    influence[0, [3, 11, 20]], influence[1, [0, 29]] = [2, -1, 1.5], [-2, 1]
    found = score_outcomes("datamodel-lasso", *linear_world(150, influence, noise=0.1))
    np.testing.assert_allclose(found, influence, atol=0.1)
    for query, expected in zip(found, influence, strict=True):
        assert np.abs(query[expected == 0]).max() < 0.25 * np.abs(query[expected != 0]).min()


def test_the_lasso_is_at_its_optimum() -> None:
    """Of ‖loss − w·mask − c‖²/2S + α‖w‖₁: an image's slope is α in size where w is not zero, and no more elsewhere."""
    influence = np.random.default_rng(3).normal(size=(2, 15)) * (np.arange(15) < 5)
    masks, losses = linear_world(60, influence, noise=1.0)
    centred, targets = masks - masks.mean(0), losses - losses.mean(0, dtype=np.float64)
    for query, scores in enumerate(score_outcomes("datamodel-lasso", masks, losses).astype(np.float64)):
        slopes = centred.T @ (targets[:, query] + centred @ scores) / len(masks)
        inside, strength = scores != 0, np.abs(slopes).max()
        assert 0 < inside.sum() < 15
        np.testing.assert_allclose(slopes[inside], -strength * np.sign(scores[inside]), rtol=0.02, atol=1e-4)


@pytest.mark.parametrize("method", OUTCOMES)
def test_too_few_retrained_models_are_refused(method: str) -> None:
    with pytest.raises(UsageError, match="3 retrained models are too few"):
        score_outcomes(method, *linear_world(3, np.ones((1, 6))))


# one sign


def test_a_step_of_training_lowers_the_querys_loss_by_the_score() -> None:
    """θ → θ − η g_n lowers L(x) by η·gradient-dot, and the step η(ΦᵀΦ + λI)⁻¹g_n lowers it by η·trak."""
    model = tiny.unet()
    found = dtrak.attribute(model, TRAIN, QUERIES, method=["gradient-dot", "trak"], parameters=DUAL, **EXACT)
    precise = dtrak.DiffusionModel(deepcopy(model.network).double().eval(), model.scheduler, model.shape)
    chosen = [value for name, value in precise.network.named_parameters() if re.search(DUAL, name)]
    train = features_of_seed(0, "simple", DUAL)[0]
    preconditioned = train @ np.linalg.inv(train.T @ train + LAMBDA * np.eye(train.shape[1]))
    copies = [[(clean.double(), t, 0) for t in (0, 500)] for clean in QUERIES.tensor(range(3))]

    @torch.no_grad()
    def losses_after(step: Array) -> Array:
        before = torch.nn.utils.parameters_to_vector(chosen)
        torch.nn.utils.vector_to_parameters(before - torch.from_numpy(step), chosen)
        losses = np.array([float(loss(precise, of_query)) for of_query in copies])
        torch.nn.utils.vector_to_parameters(before, chosen)
        return losses

    for image in (0, 5, 11):
        for method, steps in (("gradient-dot", train), ("trak", preconditioned)):
            step = 1e-4 * steps[image] / np.linalg.norm(steps[image])
            lowered = (losses_after(-step) - losses_after(step)) / 2 * np.linalg.norm(steps[image]) / 1e-4
            np.testing.assert_allclose(
                found[method].values[:, image], lowered, rtol=1e-2, atol=1e-3 * np.abs(lowered).max()
            )


def test_a_duplicate_of_the_query_is_its_top_proponent(checkpoints: Path, benchmark: Path) -> None:
    """By Cauchy–Schwarz for cosines, and for kernels with so little damping that they nearly interpolate.

    A larger image or gradient may have a larger dot product; there the duplicate is a proponent all the same.
    """
    found = dtrak.attribute(
        tiny.unet(),
        TRAIN,
        TRAIN.select([4, 0, 7]),
        method=[*SIMILARITY, *CHECKPOINTS, *KERNEL, *ENSEMBLES],
        checkpoints=checkpoints,
        checkpoint_count=2,
        retrained=benchmark,
        ensemble_size=2,
        encoder="efficientnet-lite0",
        timesteps=1,
        projection="identity",
        damping=1e-4,
    )
    for name, scores in found.items():
        own = scores.values[range(3), [4, 0, 7]]
        assert (own > 0).all(), name
        if name not in ("raw-pixel-dot", "clip-dot", "gradient-dot", "tracin"):
            assert scores.values.argmax(1).tolist() == [4, 0, 7], name


def test_a_dot_product_is_never_more_than_the_larger_of_two_self_scores(checkpoints: Path) -> None:
    """What Cauchy–Schwarz leaves of the duplicate's precedence, averages over checkpoints included."""
    found = dtrak.attribute(
        tiny.unet(),
        TRAIN,
        TRAIN,
        method=["raw-pixel-dot", "gradient-dot", "tracin"],
        checkpoints=checkpoints,
        checkpoint_count=2,
        timesteps=1,
        projection="identity",
    )
    for scores in found.values():
        values = scores.values.astype(np.float64)
        np.testing.assert_allclose(values, values.T, rtol=1e-4, atol=1e-5 * np.abs(values).max())
        bound = np.sqrt(np.outer(np.diag(values), np.diag(values)))
        assert (values <= bound * (1 + 1e-5)).all()


@pytest.mark.parametrize("method", OUTCOMES)
def test_an_image_that_halves_the_loss_is_the_top_proponent(method: str) -> None:
    masks, losses = linear_world(400, np.zeros((3, 10)), noise=0.05)
    losses[masks[:, 6]] /= 2
    losses[masks[:, 2]] *= 1.2
    scores = score_outcomes(method, masks, losses)
    assert (scores.argmax(1) == 6).all()
    assert (scores.argmin(1) == 2).all()


# laws

sizes = st.integers(1, 8)
seeds = st.integers(0, 10_000)
factors = st.floats(1e-6, 1e6)
law = settings(max_examples=40, deadline=None)


def random_vectors(train: int, dim: int, queries: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    return random.normal(size=(train, dim)).astype(np.float32), random.normal(size=(queries, dim)).astype(np.float32)


def score_vectors(
    method: str, train: NDArray[np.floating[Any]], queries: NDArray[np.floating[Any]], damping: float = 1.0
) -> Array:
    rows = InMemory(train.astype(np.float32))
    vectors = Vectors(rows, queries.astype(np.float32), lambda: decompose(rows))
    found: Array = METHODS[method].formula(vectors, Damping("absolute", damping)).astype(np.float64)
    return found


def assert_same(found: Array, expected: Array, scale: float | None = None) -> None:
    largest = np.abs(expected).max() if scale is None else scale
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * largest)


@law
@given(sizes, sizes, sizes, seeds, st.lists(factors, min_size=16, max_size=16))
def test_cosines_do_not_see_how_large_an_image_is(n: int, k: int, q: int, seed: int, scales: Sequence[float]) -> None:
    train, queries = random_vectors(n, k, q, seed)
    found = score_vectors("gradient-cosine", train, queries)
    assert (np.abs(found) <= 1 + 1e-6).all()
    scaled = score_vectors("gradient-cosine", train * np.c_[scales[:n]], queries * np.c_[scales[8 : 8 + q]])
    assert_same(scaled, found, 1)
    assert_same(score_vectors("gradient-cosine", -train, queries), -found, 1)


@law
@given(sizes, sizes, seeds, st.floats(1e-3, 1e3), st.integers(-5, 5), st.integers(-5, 5))
@pytest.mark.parametrize("method", ["gradient-dot", "trak", "relative-if", "renormalized-if"])
def test_scores_are_linear_in_the_query(method: str, n: int, k: int, seed: int, damping: float, a: int, b: int) -> None:
    train, queries = random_vectors(n, k, 2, seed)
    x, y = score_vectors(method, train, queries, damping)
    mixed = score_vectors(method, train, (a * queries[0] + b * queries[1])[None], damping)[0]
    assert_same(mixed, a * x + b * y, max(np.abs(a * x).max(), np.abs(b * y).max()))


@law
@given(sizes, sizes, sizes, seeds, st.floats(1e-2, 1e2), st.floats(1e-2, 1e2))
@pytest.mark.parametrize(("method", "power"), [("trak", 0), ("relative-if", 1), ("renormalized-if", -1)])
def test_kernels_change_with_the_unit_of_the_features_as_their_formulas_do(
    method: str, power: int, n: int, k: int, q: int, seed: int, damping: float, unit: float
) -> None:
    """φ → cφ with λ → c²λ leaves trak as it is, and its quotients by c and by 1/c."""
    train, queries = random_vectors(n, k, q, seed)
    found = score_vectors(method, train, queries, damping)
    scaled = score_vectors(method, unit * train, unit * queries, unit**2 * damping)
    assert_same(scaled, unit**power * found)


@law
@given(sizes, sizes, sizes, seeds, st.floats(1e-2, 1e2))
def test_relative_and_renormalized_influence_are_trak_in_other_units(
    n: int, k: int, q: int, seed: int, damping: float
) -> None:
    """Of one sign with trak, over a norm that is the same for every query; relative-if is at most ‖φ(x)‖."""
    train, queries = random_vectors(n, k, q, seed)
    trak, relative_if, renormalized_if = (
        score_vectors(method, train, queries, damping) for method in ("trak", "relative-if", "renormalized-if")
    )
    inverse = np.linalg.inv(train.T.astype(np.float64) @ train + damping * np.eye(k))
    assert_same(relative_if * np.linalg.norm(inverse @ train.T, axis=0), trak)
    assert_same(renormalized_if * np.linalg.norm(train.astype(np.float64), axis=1), trak)
    assert (np.abs(relative_if) <= np.linalg.norm(queries, axis=1)[:, None] * (1 + 1e-5)).all()


@law
@given(sizes, sizes, seeds)
def test_images_without_a_feature_score_nothing(n: int, k: int, seed: int) -> None:
    train, queries = random_vectors(n + 1, k, 2, seed)
    train[0] = 0
    for method in ("gradient-dot", "gradient-cosine", "trak", "relative-if", "renormalized-if"):
        found = score_vectors(method, train, queries)
        assert (found[:, 0] == 0).all()
        assert_same(found[:, 1:], score_vectors(method, train[1:], queries))


@settings(max_examples=20, deadline=None)
@given(st.integers(8, 30), st.integers(2, 10), seeds, st.floats(-10, 10), st.floats(0.1, 10))
@pytest.mark.parametrize("method", ["empirical-influence", "datamodel"])
def test_outcomes_are_compared_not_measured(
    method: str, subsets: int, images: int, seed: int, offset: float, unit: float
) -> None:
    """Antisymmetric in who was in and who was out; blind to a constant; in the unit of the loss."""
    random = np.random.default_rng(seed)
    masks, losses = random.random((subsets, images)) < 0.5, random.normal(size=(subsets, 2))
    found = score_outcomes(method, masks, losses)
    largest = max(1e-3, float(np.abs(found).max()))
    for other, expected in (
        (score_outcomes(method, ~masks, losses), -found),
        (score_outcomes(method, masks, -losses), -found),
        (score_outcomes(method, masks, losses + offset), found),
        (score_outcomes(method, masks, unit * losses), unit * found),
    ):
        np.testing.assert_allclose(other, expected, rtol=1e-2, atol=1e-2 * largest * max(1, unit))


@law
@given(sizes, sizes, sizes, seeds)
def test_empirical_influence_is_its_loops(subsets: int, images: int, queries: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    masks = random.random((subsets + 3, images)) < 0.5
    losses = random.normal(size=(subsets + 3, queries)).astype(np.float32)
    np.testing.assert_allclose(
        score_outcomes("empirical-influence", masks, losses), loops(masks, losses), rtol=1e-4, atol=1e-6
    )
