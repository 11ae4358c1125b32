"""What holds for methods whatever their formula, which tests/reference compares: their names, projections of each
model, and one sign for all."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dtrak
import tiny
from dtrak.features.store import FeatureStore
from dtrak.methods import METHODS
from dtrak.models import save_model
from tiny_benchmark import TRAIN, VALIDATION, write_benchmark

QUERIES = VALIDATION.select([3, 0, 2])
SIMILARITY = ("raw-pixel-dot", "raw-pixel-cosine", "clip-dot", "clip-cosine", "gradient-dot", "gradient-cosine")
CHECKPOINTS = ("tracin", "gas")
KERNEL = ("trak", "d-trak", "mixed-trak", "relative-if", "renormalized-if")
ENSEMBLES = ("trak-ensemble", "d-trak-ensemble")
OUTCOMES = ("empirical-influence", "datamodel", "datamodel-lasso")
JOURNEYS = ("journey-trak", "journey-trak-ensemble")
OTHERS = ("step-trak", "retrac", "nda", "das", "ek-fac", "random")


def test_every_method_of_the_contract_is_there() -> None:
    assert {*SIMILARITY, *CHECKPOINTS, *KERNEL, *ENSEMBLES, *OUTCOMES, *JOURNEYS, *OTHERS} == set(METHODS)
    for name, method in METHODS.items():
        assert method.name == name
        assert method.summary
        assert method.needs


def features_of_members(cache: Path) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Features of queries and of training images with each of several models, which differ in their projections."""
    stores = [FeatureStore.open(path.parent) for path in sorted(cache.glob("[qt]*/part.json"))]
    members = sorted({str(store.part["model"]) for store in stores})
    of_each = [[one for one in stores if str(one.part["model"]) == member] for member in members]
    assert [[one.folder.name.split("-")[0] for one in stores] for stores in of_each] == [["queries", "train"]] * 2
    return [(queries.numpy().astype(np.float64), train.numpy().astype(np.float64)) for queries, train in of_each]


# several models


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of a training."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for seed in (4, 8):
        save_model(tiny.unet(seed=seed), folder / f"step-{10 * seed:06d}")
    return folder


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two subsets whose models were kept."""
    models = {"subset-000-seed-0": tiny.unet(seed=2), "subset-001-seed-0": tiny.unet(seed=4)}
    return write_benchmark(tmp_path_factory.mktemp("benchmark"), models)


def test_each_checkpoint_has_a_projection_of_its_own(tmp_path: Path) -> None:
    """The same weights twice: other features, nearly the same dot products."""
    for name in ("step-1", "step-2"):
        save_model(tiny.unet(), tmp_path / "checkpoints" / name)
    asked: dict[str, Any] = {"checkpoints": tmp_path / "checkpoints", "timesteps": 2, "projection_dim": 2048}
    found = dtrak.attribute(tiny.unet(), TRAIN, TRAIN, method="tracin", cache=tmp_path / "cache", **asked)
    one, other = (train for _, train in features_of_members(tmp_path / "cache"))
    exact = dtrak.attribute(tiny.unet(), TRAIN, TRAIN, method="tracin", **asked | {"projection": "identity"}).values
    norms = np.sqrt(np.diag(exact))
    assert np.abs(np.sum(one * other, axis=1) / norms**2).max() < 0.2
    # The variance of a dot product is at most 2‖g‖²‖h‖²/k.
    for sketched in (one, other):
        assert (np.abs(sketched @ sketched.T - exact) < 5 * (2 / 2048) ** 0.5 * norms * norms[:, None]).all()
    np.testing.assert_allclose(found.values, (one @ one.T + other @ other.T) / 2, rtol=1e-4)


def test_checkpoints_of_a_model_that_never_moved_are_the_model(tmp_path: Path) -> None:
    for step in (1, 2):
        save_model(tiny.unet(), tmp_path / f"step-{step}")
    names = ["tracin", "gradient-dot", "gas", "gradient-cosine"]
    asked: dict[str, Any] = {"checkpoints": tmp_path, "timesteps": 2, "projection": "identity"}
    found = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, names, **asked)
    for of_checkpoints, of_model in (("tracin", "gradient-dot"), ("gas", "gradient-cosine")):
        np.testing.assert_allclose(found[of_checkpoints].values, found[of_model].values, rtol=1e-5)


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
        damping="absolute:0.01",
    )
    features = features_of_members(tmp_path / "cache")
    assert not np.allclose(features[0][1], features[1][1])
    each = [queries @ np.linalg.solve(train.T @ train + 0.01 * np.eye(512), train.T) for queries, train in features]
    np.testing.assert_allclose(found.values, np.mean(each, axis=0), rtol=1e-3, atol=1e-4 * np.abs(each).max())


# one sign


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
        retrained=benchmark,
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
        timesteps=1,
        projection="identity",
    )
    for scores in found.values():
        values = scores.values.astype(np.float64)
        np.testing.assert_allclose(values, values.T, rtol=1e-4, atol=1e-5 * np.abs(values).max())
        bound = np.sqrt(np.outer(np.diag(values), np.diag(values)))
        assert (values <= bound * (1 + 1e-5)).all()
