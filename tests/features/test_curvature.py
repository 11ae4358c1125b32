"""The Gauss–Newton matrix in Kronecker factors, against gradients of autograd and dense matrices."""

from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler
from torch import Tensor, nn

import tiny
from dtrak import DiffusionModel
from dtrak.features.curvature_pass import directions_of, kept_directions
from dtrak.features.model_inputs import model_inputs
from dtrak.features.spec import Spec
from dtrak.gradients.kronecker_factors import Directions, probed
from dtrak.kernels import ArrayRows
from dtrak.kernels.damping import automatic
from dtrak.kernels.kronecker import Kronecker
from dtrak.noise import gaussian
from dtrak.progress import watched_by
from tiny_benchmark import TRAIN

STEPS = (0, 500)
SETTINGS = Spec(timesteps="uniform:2")


def probes_of(model: DiffusionModel) -> Tensor:
    """v of every copy of the training images, by the names that they have, [copies, C, H, W]."""
    names = [f"probe {one.tobytes().hex()}" for one in TRAIN.digests]
    return torch.stack([gaussian(model.shape, 0, t, 0, name) for name in names for t in STEPS])


class Constant(nn.Module):
    """Layers whose inputs are the same for every copy: there a and g are independent, and Kronecker factors exact."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 64, bias=False)
        self.scale = nn.LayerNorm(64)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = torch.tanh(self.first(torch.tensor([0.5, -1.0, 2.0]).expand(len(x), 3)))
        return self.scale(self.second(h)).reshape(x.shape)


def constant() -> DiffusionModel:
    torch.manual_seed(3)
    return DiffusionModel(Constant(), DDPMScheduler(), tiny.SHAPE)


def pseudo_gradients(model: DiffusionModel, v: Tensor, parameters: str | None = None) -> np.ndarray:
    """√(2/D) Jᵀv of every copy of the training images by autograd, [copies, d]."""
    model.network.eval()
    found = []
    for number, (clean, t) in enumerate((clean, t) for clean in TRAIN.tensor(range(len(TRAIN))) for t in STEPS):
        step, noise = torch.tensor([t]), gaussian(model.shape, 0, t, 0)
        predicted = model.predict_target(model.process.add_noise(clean[None], noise[None], step), step)[0]
        loss = (2 / predicted.numel()) ** 0.5 * (predicted * v[number]).sum()
        gradients = torch.autograd.grad(loss, list(model.parameters(parameters).values()))
        found.append(torch.cat([gradient.flatten() for gradient in gradients]).double().numpy())
    return np.array(found)


def dense(directions: Directions) -> np.ndarray:
    """Σ_j s_j q_j q_jᵀ, [d, d]."""
    rotated = directions.rotated(torch.eye(len(directions.eigenvalues))).double().numpy()
    found: np.ndarray = rotated * directions.eigenvalues.double().numpy() @ rotated.T
    return found


def assert_near(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


def test_probes_have_the_gauss_newton_matrix_as_second_moment() -> None:
    """E[∇ℓ ∇ℓᵀ] with respect to the output itself: 2/D."""
    output = torch.zeros(4000, 1, 2, 3, requires_grad=True)
    probed(output, gaussian((4000, 1, 2, 3), 0), torch.ones(4000)).sum().backward()
    assert output.grad is not None
    moments = (output.grad.flatten(1).T @ output.grad.flatten(1) / 4000).numpy()
    np.testing.assert_allclose(moments, 2 / 6 * np.eye(6), atol=0.05)


def test_where_inputs_are_constant_it_is_the_dense_matrix_of_each_layer(tmp_path: Path) -> None:
    model = constant()
    v = probes_of(model)
    found = dense(directions_of(model, model_inputs(model, TRAIN), SETTINGS, tmp_path))
    gradients = pseudo_gradients(model, v)
    whole = gradients.T @ gradients / len(gradients)
    first, second, scale = (slice(0, 16), slice(16, 272), slice(272, 400))  # weight 12 and bias 4; weight; norm
    expected = np.zeros_like(whole)
    expected[first, first], expected[second, second] = whole[first, first], whole[second, second]
    expected[scale, scale] = np.diag(np.diag(whole[scale, scale]))
    assert_near(found, expected)


def test_scores_are_those_of_the_dense_inverse(tmp_path: Path) -> None:
    model, random, damping = constant(), np.random.default_rng(0), 1e-3
    directions = directions_of(model, model_inputs(model, TRAIN), SETTINGS, tmp_path)
    train, queries = (random.normal(size=(count, 400)).astype(np.float32) for count in (70, 3))
    train[5] = 0
    kernel = Kronecker(directions, ArrayRows(train))
    inverse = np.linalg.inv(dense(directions) + damping * np.eye(400))
    expected = queries @ inverse @ train.T
    coordinates = kernel.coordinates(queries[:, None])
    assert_near(kernel.scores(coordinates, damping), expected)
    assert_near(kernel.scores(coordinates, damping, slice(30, 50)), expected[:, 30:50])
    assert_near(kernel.squares(damping, 1), np.diag(train @ inverse @ train.T))
    assert_near(kernel.squares(damping, 0), np.square(train).sum(1))
    assert_near(kernel.squares(damping, 2), np.square(train @ inverse).sum(1))
    assert_near(kernel.train_coordinates([3, 40]), kernel.coordinates(train[[3, 40], None]))
    assert kernel.dimension(damping) == pytest.approx(np.trace(dense(directions) @ inverse), rel=1e-4)
    assert (len(kernel), kernel.images, kernel.size) == (70, 69, 400)
    mean = float(directions.eigenvalues.double().mean())
    assert automatic("published", kernel) == pytest.approx(0.1 * mean, rel=1e-4)


def test_layers_of_a_unet_are_as_written_out(tmp_path: Path) -> None:
    """A convolution, a linear layer and a norm: covariances of inputs and output gradients, one copy at a time."""
    model, pattern = tiny.unet(), "conv_in|time_embedding.linear_1|conv_norm_out"
    v = probes_of(model)
    found = dense(
        directions_of(model, model_inputs(model, TRAIN), Spec(timesteps="uniform:2", layers=pattern), tmp_path)
    )
    gradients = pseudo_gradients(model, v, pattern)
    names = {name: value.numel() for name, value in model.parameters(pattern).items()}
    ends = np.cumsum([0, *names.values()])
    places = {name: np.arange(ends[i], ends[i + 1]) for i, name in enumerate(names)}
    expected = np.diag((gradients**2).mean(0))
    for path, kind in (("conv_in", "conv"), ("time_embedding.linear_1", "linear")):
        inputs, outputs = covariances(model, path, kind, v)
        left, right = np.linalg.eigh(outputs)[1], np.linalg.eigh(inputs)[1]
        weight, bias = places[f"{path}.weight"], places[f"{path}.bias"]
        columns = np.concatenate([weight.reshape(len(bias), -1), bias[:, None]], 1).ravel()
        both = np.kron(left, right)
        expected[np.ix_(columns, columns)] = both * ((gradients[:, columns] @ both) ** 2).mean(0) @ both.T
    assert_near(found, expected)


def covariances(model: DiffusionModel, path: str, kind: str, v: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Σ ā āᵀ and Σ g gᵀ over copies and positions, with ā = (a, 1)."""
    layer, seen = model.network.get_submodule(path), []
    handle = layer.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0], output)))
    inputs, outputs = 0.0, 0.0
    model.network.eval()
    for number, (clean, t) in enumerate((clean, t) for clean in TRAIN.tensor(range(len(TRAIN))) for t in STEPS):
        seen.clear()
        step, noise = torch.tensor([t]), gaussian(model.shape, 0, t, 0)
        predicted = model.predict_target(model.process.add_noise(clean[None], noise[None], step), step)[0]
        (a, output), loss = seen[0], (2 / predicted.numel()) ** 0.5 * (predicted * v[number]).sum()
        g = torch.autograd.grad(loss, output)[0].double()
        a = a.detach().double()
        if kind == "conv":
            padded = nn.functional.pad(a, (1, 1, 1, 1))[0]
            a = torch.stack([padded[:, i : i + 3, j : j + 3].flatten() for i in range(8) for j in range(8)])
            g = g[0].flatten(1).T
        a = torch.cat([a, torch.ones(len(a), 1, dtype=a.dtype)], 1)
        inputs, outputs = inputs + (a.T @ a).numpy(), outputs + (g.T @ g).numpy()
    handle.remove()
    return inputs, outputs  # type: ignore[return-value]


def test_networks_that_hooks_cannot_follow_have_their_diagonal(tmp_path: Path) -> None:
    model = tiny.hidden()
    v = probes_of(model)
    directions = directions_of(model, model_inputs(model, TRAIN), SETTINGS, tmp_path)
    assert not directions.blocks
    gradients = pseudo_gradients(model, v)
    assert_near(directions.eigenvalues.numpy(), (gradients**2).mean(0))


def test_directions_are_kept_for_the_same_question_alone(tmp_path: Path) -> None:
    model = tiny.unet()
    inputs = model_inputs(model, TRAIN.select(range(3)))
    for settings in (
        Spec(timesteps="uniform:1", layers="conv_in"),
        Spec(timesteps="uniform:1", layers="conv_in", seed=1),
    ):
        first, again = (kept_directions(model, inputs, settings, tmp_path, settings.facts) for _ in range(2))
        torch.testing.assert_close(first.eigenvalues, again.eigenvalues)
        fresh = directions_of(model, inputs, settings, tmp_path / f"fresh-{settings.seed}")
        torch.testing.assert_close(torch.from_numpy(dense(first)), torch.from_numpy(dense(fresh)))
    assert len(list(tmp_path.glob("curvature-*/directions.safetensors"))) == 2


class KilledError(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("batch_size", [1, 5])
def test_after_a_kill_it_goes_on_from_the_last_sums(
    batch_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in each pass: no image is passed through the network again but for those since the last sums."""
    model, spec = tiny.unet(), Spec(timesteps="uniform:1", layers="conv_in|conv_norm_out")
    inputs = model_inputs(model, TRAIN)
    whole = directions_of(model, inputs, spec, tmp_path / "whole", batch_size)
    monkeypatch.setattr("dtrak.features.curvature_pass.EVERY", 4)
    reached: list[int] = []
    for stop in (6, 9, len(TRAIN) + 3, len(TRAIN) + 7, 2 * len(TRAIN) + 1):

        def watch(title: str, done: int, total: int, unit: str, stop: int = stop) -> None:
            reached.append(done)
            if done >= stop:
                raise KilledError

        with suppress(KilledError), watched_by(watch):
            found = directions_of(model, inputs, spec, tmp_path, batch_size)
    torch.testing.assert_close(found.eigenvalues, whole.eigenvalues)
    for one, other in zip(found.blocks, whole.blocks, strict=True):
        torch.testing.assert_close(one.left, other.left)
    again = sum(before - after for before, after in pairwise(reached) if after < before)
    assert 0 < again <= 4 * (4 + batch_size)
