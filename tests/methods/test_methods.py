"""Every method against its formula, written out from the definitions: gradients one image and timestep at a time by
autograd, explicit inverses in float64, plain loops over retrained models."""

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

import dtrak
import tiny
from definitions import (
    EXACT,
    LAMBDA,
    QUERIES,
    Array,
    assert_close,
    cosines,
    dots,
    exact_gradient,
    features_of_seed,
    kernel,
    loss,
    relative,
    renormalized,
    small_kernel,
)
from dtrak.features.encoders import load_encoder
from dtrak.features.store import FeatureStore
from dtrak.methods import METHODS
from dtrak.models import ddpm
from test_outcome_methods import loops, score_outcomes
from tiny_benchmark import TRAIN, write_benchmark

# Numbers for each image: fewer than there are images, so that ΦᵀΦ is the smaller matrix, and more.
PRIMAL, DUAL = "conv_norm_out", "conv_in|conv_out|time_embedding"
SIMILARITY = ("raw-pixel-dot", "raw-pixel-cosine", "clip-dot", "clip-cosine", "gradient-dot", "gradient-cosine")
CHECKPOINTS = ("tracin", "gas")
KERNEL = ("trak", "d-trak", "mixed-trak", "relative-if", "renormalized-if")
ENSEMBLES = ("trak-ensemble", "d-trak-ensemble")
OUTCOMES = ("empirical-influence", "datamodel", "datamodel-lasso")
JOURNEYS = ("journey-trak", "journey-trak-ensemble")
COPIES = ("step-trak",)  # tests/gradients/test_noised_copies.py
SUCCESSORS = ("retrac", "nda", "das", "ek-fac")  # test_successors.py


# one model


def test_every_method_of_the_contract_is_there() -> None:
    known = {*SIMILARITY, *CHECKPOINTS, *KERNEL, *ENSEMBLES, *OUTCOMES, *JOURNEYS, *COPIES, *SUCCESSORS, "random"}
    assert known == set(METHODS)
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


@pytest.mark.parametrize("parameters", [PRIMAL, DUAL])
def test_mixed_trak_keeps_as_many_directions_for_each_of_its_objectives(parameters: str) -> None:
    """L_Square sets λ; the gradient of the training loss is that of L_Square and of the noise's part."""
    settings = EXACT | {"damping": 1.0, "parameters": parameters}
    found = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method="mixed-trak", **settings)
    square, simple, avg = (features_of_seed(0, objective, parameters) for objective in ("square", "simple", "avg"))
    noise = (simple[0] - square[0], simple[1] - square[1])

    def dimension(train: Array, damping: float) -> float:
        spectrum = np.linalg.svd(train, compute_uv=False) ** 2
        return float((spectrum / (spectrum + damping)).sum())

    led = (square[0] ** 2).sum() / len(TRAIN)
    wanted, expected, own = dimension(square[0], led), [], []
    for train, queries in (square, simple, noise, avg):
        size = (train**2).sum()
        damping = brentq(lambda one, of=train: dimension(of, one) - wanted, 1e-9 * size, 1e9 * size, rtol=1e-12)
        expected.append(small_kernel(train, queries, damping))
        own.append(np.diag(small_kernel(train, train, damping)))
    assert_close(found.values, np.mean(expected, axis=0))
    assert found.self_influence is not None
    assert_close(found.self_influence, np.mean(own, axis=0))


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
        FeatureStore.open(next(path.glob("train-simple-*"))).numpy().astype(np.float64)
        for path in sorted((tmp_path / "cache").glob("step-*"))
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
    stores = [sorted((tmp_path / "cache").glob(f"subset-00{s}-seed-0-*/[qt]*")) for s in (0, 1)]
    assert [[path.name.split("-")[0] for path in paths] for paths in stores] == [["queries", "train"]] * 2
    features = [[FeatureStore.open(path).numpy().astype(np.float64) for path in paths] for paths in stores]
    assert not np.allclose(features[0][1], features[1][1])
    assert_close(found.values, np.mean([small_kernel(train, queries) for queries, train in features], axis=0))


def test_empirical_influence_is_a_difference_of_means(benchmark: Path) -> None:
    found = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method="empirical-influence", retrained=benchmark)
    masks, losses = np.load(benchmark / "masks.npy"), np.load(benchmark / "losses.npy")
    np.testing.assert_allclose(found.values, loops(masks, losses.mean(1)[:, [3, 0, 2]]), rtol=1e-4, atol=1e-6)


def test_datamodels_take_the_benchmarks_losses(benchmark: Path) -> None:
    found = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method=["datamodel", "datamodel-lasso"], retrained=benchmark)
    masks, losses = np.load(benchmark / "masks.npy"), np.load(benchmark / "losses.npy").mean(1)[:, [3, 0, 2]]
    for name, scores in found.items():
        np.testing.assert_allclose(scores.values, score_outcomes(name, masks, losses), rtol=1e-4, atol=1e-6)


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
        method=[*SIMILARITY, *CHECKPOINTS, *KERNEL, *ENSEMBLES, "retrac"],
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
