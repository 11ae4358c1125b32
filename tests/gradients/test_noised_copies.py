"""Features of every noised copy against autograd, and kernels of copies against the formulas written out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

import dtrak
import tiny
from commands import dtrak as command
from dtrak import DiffusionModel
from dtrak.contracts import Array, Kernel, Rows
from dtrak.engines.jobs import ThisProcess
from dtrak.errors import UsageError
from dtrak.features.featurizing import parameters_of
from dtrak.features.spec import Spec
from dtrak.features.store import FeatureStore
from dtrak.gradients.copies import Copies
from dtrak.gradients.featurizer import Featurizer
from dtrak.gradients.layers import by_autograd
from dtrak.gradients.objectives import get_objective, square
from dtrak.gradients.projections import make_projection, sizes_of
from dtrak.images.images import Images, load_images
from dtrak.kernels import Ridge
from dtrak.kernels.rows import OneRow
from dtrak.methods import METHODS, Gradients
from dtrak.methods import Ridge as RidgeRecord
from dtrak.models.diffusion import LATE, usual_parameters
from dtrak.noise import gaussian
from featurized import featurize
from test_gradients import DEFEAT_HOOKS, MODELS, relative_error

COPIES = Copies((50, 450, 950), draws=2, seed=7)
SHAPES = {"conv.weight": (7, 10, 10), "conv.bias": (7,), "out.weight": (13, 10)}


def shapes_of(model: DiffusionModel, pattern: str | None = None) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in model.parameters(pattern).items()}


def gradient_of_copy(
    model: DiffusionModel, objective: str, image: Tensor, copy: int, pattern: str | None
) -> list[Tensor]:
    """torch.autograd.grad for one copy of one image: the gradient of each parameter."""
    timestep, draw = COPIES.pairs()[copy]
    noise, t = gaussian(model.shape, COPIES.seed, timestep, draw)[None], torch.tensor([timestep])
    predicted = model.predict_target(model.process.add_noise(image[None], noise, t), t)
    loss = get_objective(objective)(predicted, noise, model.process.elbo_weights(t)).sum()
    return list(torch.autograd.grad(loss, list(model.parameters(pattern).values())))


@pytest.mark.parametrize("kind", ["factored", "sketch", "identity"])
@pytest.mark.parametrize("name", MODELS)
def test_every_copy_has_the_projection_of_its_own_gradient(name: str, kind: str) -> None:
    """Also where hooks cannot follow the network."""
    model, clean = MODELS[name](), tiny.clean_images(2)
    shapes, objectives = shapes_of(model), ["simple", "avg"]
    projection = make_projection(kind, 300, shapes, 0)
    functions = [get_objective(name) for name in objectives]
    features = Featurizer(model, functions, COPIES, projection, model.parameters(), apart=True)
    found = features(clean, [0, 1])
    assert found.shape == (2, 2, 6, projection.dim)
    assert features.follows_layers == (name not in DEFEAT_HOOKS)
    model.network.eval()
    for row, objective in enumerate(objectives):
        for image in range(2):
            for copy in range(6):
                expected = torch.zeros(1, projection.dim)
                for parameter, gradient in zip(
                    shapes, gradient_of_copy(model, objective, clean[image], copy, None), strict=True
                ):
                    projection.add(expected, parameter, gradient.reshape(1, -1).clone())
                assert relative_error(found[row, image, copy], expected[0]) < 1e-4


@pytest.mark.parametrize("kind", ["factored", "sketch"])
def test_the_mean_over_copies_is_the_averaged_feature(kind: str) -> None:
    model, clean = tiny.unet(), tiny.clean_images(3)
    projection = make_projection(kind, 300, shapes_of(model), 0)
    apart, averaged = (
        Featurizer(model, [square], COPIES, projection, model.parameters(), apart=apart)(clean, range(3))
        for apart in (True, False)
    )
    assert relative_error(apart.mean(2), averaged) < 1e-5


def test_copies_that_do_not_fit_into_one_pass_are_the_same() -> None:
    model, clean = tiny.unet(), tiny.clean_images(3)
    projection = make_projection("factored", 300, shapes_of(model, "up_blocks"), 0)
    features = Featurizer(model, [square], COPIES, projection, model.parameters("up_blocks"), apart=True)
    whole = features(clean, range(3))
    features.copies_at_once, features.batch_size = 4, 2
    assert relative_error(features(clean, range(3)), whole) < 1e-5


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Conv1d(4, 6, 3), (6, 4, 9)), (nn.Conv2d(4, 8, 3, groups=2), (6, 4, 5, 5)), (nn.PReLU(4), (6, 4, 5))],
)
def test_layers_of_other_types_are_run_again(layer: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    a = torch.randn(shape)
    output = layer(a)
    g = torch.randn_like(output)
    found = by_autograd(layer, "weight", a, g, images=3)
    for image in range(3):
        part = slice(2 * image, 2 * image + 2)
        (expected,) = torch.autograd.grad(layer(a[part]), [layer.get_parameter("weight")], g[part])
        torch.testing.assert_close(found[image], expected.flatten(), rtol=1e-4, atol=1e-5)


# the factored projection


def projected(kind: str, dim: int, seed: int, gradients: Tensor) -> Tensor:
    projection = make_projection(kind, dim, SHAPES, seed)
    out = torch.zeros(len(gradients), projection.dim)
    for name, part in zip(SHAPES, gradients.split(list(sizes_of(SHAPES).values()), dim=1), strict=True):
        projection.add(out, name, part.clone())
    return out


def test_factored_inner_products_have_no_bias() -> None:
    random = torch.Generator().manual_seed(0)
    g = torch.randn(2, 837, generator=random)
    g[1] += g[0]
    products = np.array([float(torch.dot(*projected("factored", 60, seed, g))) for seed in range(2000)])
    assert abs(products.mean() - float(g[0] @ g[1])) < 4 * products.std() / np.sqrt(len(products))
    assert products.std() > 0


def test_factored_is_exact_where_all_numbers_fit() -> None:
    g = torch.randn(2, 837, generator=torch.Generator().manual_seed(0))
    whole = projected("factored", 1000, 3, g)
    assert whole.shape[1] == 837
    torch.testing.assert_close(whole @ whole.T, g @ g.T, rtol=1e-4, atol=1e-2)


@settings(max_examples=30, deadline=None)
@given(dim=st.integers(3, 900))
def test_factored_takes_no_more_numbers_than_it_may(dim: int) -> None:
    assert make_projection("factored", dim, SHAPES, 0).dim <= dim


def test_too_few_numbers_for_the_factored_projection_are_refused() -> None:
    with pytest.raises(UsageError, match="needs a number for each of 2 matrices"):
        make_projection("factored", 1, SHAPES, 0)


# from images to scores


@pytest.fixture(scope="module")
def digits() -> Images:
    return load_images("digits:train").select(range(40))


class OfMeans(Ridge):
    """The kernel of all copies, which scores the mean of an image's copies."""

    def coordinates(self, rows: NDArray[np.float32]) -> Array:
        return super().coordinates(rows.mean(1, keepdims=True))


def of_means(rows: Rows) -> Kernel:
    return OfMeans.of(rows, scored=OneRow(rows))


STEP_TRAK = METHODS["step-trak"]
assert isinstance(STEP_TRAK.needs, Gradients)
VARIANTS = {
    "as it is": STEP_TRAK,
    "another objective": STEP_TRAK,
    "not squared": replace(STEP_TRAK, name="not-squared", square=False),
    "own lengths": replace(STEP_TRAK, name="own-lengths", needs=replace(STEP_TRAK.needs, unit=False)),
    "means": replace(STEP_TRAK, name="of-means", kernel=of_means),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_step_trak_is_the_formula(name: str, digits: Images, tmp_path: Path) -> None:
    queries = digits.select([1, 5])
    scores = dtrak.attribute(
        tiny.unet(),
        digits,
        queries,
        VARIANTS[name],
        timesteps=2,
        projection_dim=64,
        damping="absolute:0.2",
        cache=tmp_path,
        objective="square" if name == "another objective" else None,
    )
    rows = [
        np.concatenate([FeatureStore.open(path).numpy() for path in sorted(tmp_path.glob(f"{side}-*"))], 1)
        for side in ("train", "queries-*")
    ]
    assert rows[0].shape == (40, 2, FeatureStore.open(next(tmp_path.glob("train-*"))).dim)
    if name != "own lengths":
        rows = [one / np.linalg.norm(one, axis=2, keepdims=True) for one in rows]
    train, asked = (one.astype(np.float64) for one in rows)
    gram = np.einsum("nck,ncl->kl", train, train) + 0.2 * np.eye(train.shape[2])
    if name == "means":
        train, asked = train.mean(1, keepdims=True), asked.mean(1, keepdims=True)
    inverse = np.linalg.inv(gram)
    expected, own = (
        np.einsum("qck,kl,ncl->qn", asked, inverse, train),
        np.einsum("nck,kl,ncl->n", train, inverse, train),
    )
    if name != "not squared":
        expected, own = np.sign(expected) * expected**2, own**2
    np.testing.assert_allclose(scores.values, expected, rtol=5e-3, atol=1e-4)
    np.testing.assert_allclose(scores.self_influence, own, rtol=5e-3, atol=1e-4)


@pytest.mark.parametrize(
    "given",
    [
        {"parameters": "up_blocks"},
        {"autocast": True},
        {"noise": "per-image", "draws": 2},
        {"dtype": "bfloat16"},
        {"projection": "sketch"},
        {"engine": ThisProcess()},
    ],
    ids=lambda given: next(iter(given)),
)
def test_step_trak_takes_every_setting(given: dict[str, Any], digits: Images) -> None:
    """An image is its own strongest proponent, however its features are made."""
    queries = digits.select([1, 5, 7])
    scores = dtrak.attribute(tiny.unet(), digits, queries, "step-trak", timesteps=3, projection_dim=128, **given)
    if given != {"noise": "per-image", "draws": 2}:  # the noise of a query is then not that of the same training image
        assert [matches[0].position for matches in scores.top(1)] == [1, 5, 7]
    assert np.isfinite(scores.values).all()


def test_one_kernel_for_each_copy_is_the_mean_of_traks(digits: Images, tmp_path: Path) -> None:
    model, queries = tiny.unet(), digits.select([1, 5])
    same: dict[str, Any] = {"projection": "sketch", "projection_dim": 64, "damping": 0.1, "parameters": "all"}
    of_each = replace(VARIANTS["own lengths"], name="of-each-copy", kernel=RidgeRecord("rows", pooled=False))
    each = dtrak.attribute(model, digits, queries, of_each, timesteps="100,600", **same)
    traks = [
        dtrak.attribute(model, digits, queries, "trak", timesteps=f"{timestep},", **same).values
        for timestep in (100, 600)
    ]
    mean = np.mean(traks, axis=0)
    np.testing.assert_allclose(each.values, mean * np.abs(mean), rtol=1e-3, atol=1e-5)


def test_a_shard_that_is_gone_or_damaged_is_made_again(digits: Images, tmp_path: Path) -> None:
    model, how = (
        tiny.unet(),
        Spec("final", "apart", "250,750", projection="factored", projection_dim=64, dtype="bfloat16"),
    )
    before = featurize(model, digits, ["simple"], how, tmp_path)["simple"]
    whole, shards = before.numpy(), sorted(before.folder.glob("shard-*"))
    assert len(shards) == 2
    shards[0].unlink()
    shards[1].write_bytes(shards[1].read_bytes()[:-3])
    after = featurize(model, digits, ["simple"], how, tmp_path)["simple"]
    assert after.numpy().tobytes() == whole.tobytes()
    assert after.nbytes == 40 * 2 * after.dim * 2


def test_the_command_scores_with_it_beside_others(own_run: Path, tmp_path: Path) -> None:
    outcome = command(
        *("attribute", own_run, "--queries", "digits:validation", "--method", "trak,step-trak"),
        *("--cache", tmp_path / "features", "--out", tmp_path / "s.npz", "--projection-dim", "64"),
        cwd=tmp_path,
    )
    assert outcome.code == 0, outcome.err
    with np.load(tmp_path / "s.npz") as scores:
        assert scores["methods"].tolist() == ["trak", "step-trak"]
        assert np.isfinite(scores["values"]).all()


def test_copies_have_gradients_of_the_later_layers(digits: Images, tmp_path: Path) -> None:
    """From a U-Net's middle to its end, unless parameters are named; averaged gradients are of all layers."""
    model = tiny.unet()
    later, named = (
        featurize(model, digits.first(3), ["simple"], Spec("final", "apart", layers=layers), tmp_path)["simple"]
        for layers in ("later", LATE)
    )
    np.testing.assert_array_equal(named.numpy(), later.numpy())
    assert [*parameters_of(model, Spec(layers="usual"))] == [*model.parameters("all")]
    chosen = {name.partition(".")[0] for name in model.parameters(LATE)}
    assert chosen == {"mid_block", "up_blocks", "conv_norm_out", "conv_out"}
    assert usual_parameters(torch.nn.Linear(2, 2), apart=True) == "all"
