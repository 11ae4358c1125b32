"""From model and images to scores: the whole way against the formula in numpy, and what the front door refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler
from numpy.typing import NDArray
from torch import Tensor, nn

import dtrak
import tiny
from dtrak.errors import DtrakError, UsageError
from dtrak.noise import gaussian

TRAIN = dtrak.load_images("digits:train").select(range(12))
AVERAGE = {"objective": "avg"}
SMALL: dict[str, Any] = {"timesteps": 2, "projection_dim": 64}  # for laws that hold whatever is kept of a gradient
QUERIES = dtrak.load_images("digits:validation").select([5, 3, 8])


def exact_gradients(model: dtrak.DiffusionModel, images: dtrak.Images, simple: bool) -> NDArray[np.float64]:
    """[B, d], one image and timestep at a time, in the formula's own words."""
    model.network.eval()
    rows = []
    for clean in images.tensor(range(len(images))):
        mean = torch.zeros(())
        for t in (0, 500):
            noise = gaussian(model.shape, 0, t, 0)
            signal = model.scheduler.alphas_cumprod[t]
            noisy = signal.sqrt() * clean + (1 - signal).sqrt() * noise
            predicted = model.network(noisy[None], torch.tensor([t])).sample[0]
            mean = mean + ((predicted - noise) if simple else predicted).square().mean() / 2
        gradients = torch.autograd.grad(mean, list(model.network.parameters()))
        rows.append(torch.cat([value.flatten() for value in gradients]).double().numpy())
    return np.stack(rows)


@pytest.mark.parametrize("method", ["trak", "d-trak"])
def test_scores_are_the_formula(method: str) -> None:
    model = tiny.unet()
    found = dtrak.attribute(
        model, TRAIN, QUERIES, method=method, timesteps=2, projection="identity", damping="absolute:0.01"
    )
    train, queries = (exact_gradients(model, images, method == "trak") for images in (TRAIN, QUERIES))
    # (ΦᵀΦ + λI)⁻¹Φᵀ = Φᵀ(ΦΦᵀ + λI)⁻¹, and the second is small enough to invert.
    expected = queries @ train.T @ np.linalg.inv(train @ train.T + 0.01 * np.eye(12))
    np.testing.assert_allclose(found.values, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    assert found.values.dtype == np.float32
    assert found.train_ids.tolist() == list(range(12))
    assert found.query_ids.tolist() == [5, 3, 8]
    assert found.top(1)[0][0].columns == {"label": TRAIN.columns["label"][found.top(1)[0][0].position]}


@pytest.mark.parametrize("method", ["trak", "d-trak"])
def test_self_influence_is_the_kernel_s_own_diagonal(method: str) -> None:
    model = tiny.unet()
    found = dtrak.attribute(
        model, TRAIN, QUERIES, method=method, timesteps=2, projection="identity", damping="absolute:0.01"
    )
    train = exact_gradients(model, TRAIN, method != "d-trak")
    expected = np.diag(train @ train.T @ np.linalg.inv(train @ train.T + 0.01 * np.eye(12)))
    np.testing.assert_allclose(found.self_influence, expected, rtol=1e-3)


@pytest.mark.parametrize("method", ["gradient-dot", "relative-if"])
def test_where_an_image_s_score_for_itself_is_not_the_kernel_s_there_is_no_self_influence(method: str) -> None:
    found = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method=method, timesteps=1, damping=0.1)
    assert found.self_influence is None


def test_positive_means_proponent() -> None:
    """A training image asked about is a proponent of itself at any damping, and the strongest at a small one."""
    for damping in (1e-3, 1, 100):
        found = dtrak.attribute(tiny.unet(), TRAIN, TRAIN, timesteps=3, projection="identity", damping=damping)
        assert (np.diag(found.values) > 0).all()
        if damping == 1e-3:
            assert (found.values.argmax(1) == np.arange(12)).all()


def test_several_methods_share_one_pass_and_agree_with_each_alone(tmp_path: Path) -> None:
    model = tiny.unet()
    both = dtrak.attribute(model, TRAIN, QUERIES, method=["trak", "d-trak"], cache=tmp_path, **SMALL)
    assert list(both) == ["trak", "d-trak"]
    for method, scores in both.items():
        alone = dtrak.attribute(model, TRAIN, QUERIES, method=method, **SMALL)
        np.testing.assert_allclose(scores.values, alone.values, rtol=1e-3, atol=1e-5)
    kinds = sorted(path.name.split("-")[0] for path in tmp_path.iterdir())
    assert kinds == ["kernels", "queries", "queries", "questions", "train", "train"]


def test_a_second_question_costs_only_its_queries(tmp_path: Path) -> None:
    model = tiny.unet()
    passes = 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1

    dtrak.attribute(model, TRAIN, QUERIES, cache=tmp_path, **SMALL, batch_size=1)
    model.network.register_forward_hook(count)
    first = dtrak.attribute(model, TRAIN, QUERIES, cache=tmp_path, **SMALL, batch_size=1)
    assert passes == 0
    known = dtrak.attribute(model, TRAIN, QUERIES.select([0]), cache=tmp_path, **SMALL, batch_size=1)
    assert passes == 0  # its rows are copied
    new = dtrak.load_images("digits:validation").select([7])
    other = dtrak.attribute(model, TRAIN, new, cache=tmp_path, **SMALL, batch_size=1)
    assert passes == 2  # one to see what a copy takes, one for the query
    alone = dtrak.attribute(model, TRAIN, new, **SMALL)
    np.testing.assert_allclose(known.values, first.values[:1], rtol=1e-5, atol=1e-6 * abs(first.values).max())
    np.testing.assert_allclose(other.values, alone.values, rtol=1e-5, atol=1e-6 * abs(first.values).max())


def test_changed_weights_are_another_model(tmp_path: Path) -> None:
    """Its features are kept beside those of the first."""
    model = tiny.unet()
    before = dtrak.attribute(model, TRAIN, QUERIES, cache=tmp_path, **SMALL)
    with torch.no_grad():
        next(model.network.parameters()).mul_(2)
    after = dtrak.attribute(model, TRAIN, QUERIES, cache=tmp_path, **SMALL)
    np.testing.assert_array_equal(after.values, dtrak.attribute(model, TRAIN, QUERIES, **SMALL).values)
    assert not np.allclose(after.values, before.values)
    again = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, cache=tmp_path, **SMALL)
    np.testing.assert_array_equal(again.values, before.values)
    assert len([path for path in tmp_path.iterdir() if path.name.startswith("train-")]) == 2


def test_another_objective_is_d_traks_to_choose() -> None:
    model = tiny.unet()
    square, average = (
        dtrak.attribute(model, TRAIN, QUERIES, "d-trak", objective=objective, **SMALL).values
        for objective in (None, "avg")
    )
    assert not np.allclose(square, average)
    with pytest.raises(UsageError, match=r"trak does not take the objective 'avg': d-trak does"):
        dtrak.attribute(model, TRAIN, QUERIES, method="trak", objective="avg")


def test_the_recommended_method_answers_unless_an_objective_is_named() -> None:
    model = tiny.unet()
    recommended, of_objective = (dtrak.attribute(model, TRAIN, QUERIES, **SMALL, **more) for more in ({}, AVERAGE))
    assert (recommended.method, of_objective.method) == ("step-trak", "d-trak")
    named = dtrak.attribute(model, TRAIN, QUERIES, "d-trak", **SMALL, **AVERAGE)
    assert np.array_equal(of_objective.values, named.values)


class Plain(nn.Module):
    """Not diffusers': anything that maps (images, timesteps) to noise."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.conv(x) * (1 + t.view(-1, 1, 1, 1) / 1000)


def test_any_module_can_be_wrapped() -> None:
    torch.manual_seed(0)
    model = dtrak.DiffusionModel(Plain(), DDPMScheduler(), (1, 8, 8))
    found = dtrak.attribute(model, TRAIN, QUERIES, timesteps=5, projection="identity")
    assert found.values.shape == (3, 12)
    assert np.ptp(found.values) > 0


class Poisoned(Plain):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        bright = x.sum((1, 2, 3), keepdim=True) > self.limit
        return torch.where(bright & (t.view(-1, 1, 1, 1) == 0), torch.nan, super().forward(x, t))

    limit = 0.0


def test_a_bad_image_is_named_or_left_out_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = dtrak.DiffusionModel(Poisoned(), DDPMScheduler(), (1, 8, 8))
    brightness = TRAIN.tensor(range(12)).sum((1, 2, 3))
    brightest = int(brightness.argmax())
    monkeypatch.setattr(Poisoned, "limit", float(brightness.sort().values[-2:].mean()))
    dark = TRAIN.select([n for n in range(12) if n != brightest])
    arguments = {"timesteps": "0,500", "projection": "identity", "cache": tmp_path}
    with pytest.raises(DtrakError, match=f"image {brightest} at timestep 0"):
        dtrak.attribute(model, TRAIN, dark, **arguments)
    found = dtrak.attribute(model, TRAIN, dark, skip_bad=True, **arguments)
    reported = capsys.readouterr().err
    assert "Left out" in reported
    assert f"simple is zero or not finite for {brightest}\n" in reported
    assert (found.values[:, brightest] == 0).all()
    without = dtrak.attribute(model, dark, dark, timesteps="0,500", projection="identity")
    np.testing.assert_allclose(np.delete(found.values, brightest, 1), without.values, rtol=1e-3, atol=1e-6)
    with pytest.raises(DtrakError, match=rf"gradient of simple is zero or not finite for {brightest} \(--skip-bad"):
        dtrak.attribute(model, TRAIN, dark, **arguments)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "dtrak"}, "'dtrak': choose from random, "),
        ({"objective": "cube"}, "'cube'"),
        ({"projection": "dens"}, "'dens'"),
        ({"timesteps": 0}, "'0'"),
        ({"timesteps": "1,5000"}, "'1,5000'"),
        ({"parameters": "lora"}, "'lora': the model has conv_in"),
        ({"parameters": "("}, "not a regular expression"),
        ({"projection_dim": 0}, "projection-dim 0"),
        ({"noise": "own"}, "'own'"),
        ({"dtype": "int8"}, "'int8'"),
        ({"damping": "lots"}, "'lots'"),
    ],
)
def test_settings_that_make_no_sense_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        dtrak.attribute(tiny.unet(), TRAIN, QUERIES, **({"timesteps": 1} | settings))  # type: ignore[call-overload]
    assert message in str(caught.value)
