"""Features against brute force: autograd for each image and copy, and vmap(grad) as the paper's code has it."""

from collections.abc import Callable

import pytest
import torch
from diffusers import DDPMScheduler
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import tiny
from dtrak import DiffusionModel
from dtrak.attribution.settings import Settings
from dtrak.errors import DtrakError, UsageError
from dtrak.gradients.backward import can_share_a_pass
from dtrak.gradients.copies import Copies
from dtrak.gradients.featurizer import Featurizer
from dtrak.gradients.objectives import OBJECTIVES, get_objective
from dtrak.gradients.projections import make_projection
from dtrak.noise import gaussian

COPIES = Copies((0, 300, 900), draws=2, seed=7)
MODELS: dict[str, Callable[[], DiffusionModel]] = {
    "U-Net": tiny.unet,
    "U-Net that predicts v": lambda: tiny.unet("v_prediction"),
    "other layers": tiny.mixed,
    "tables of blocks": tiny.tables,
    "hidden use of a weight": tiny.hidden,
    "a layer without a batch axis": tiny.unbatched,
    "layers with two inputs or outputs": tiny.two_inputs_and_outputs,
}


DEFEAT_HOOKS = ("hidden use of a weight", "a layer without a batch axis", "layers with two inputs or outputs")


def features(model: DiffusionModel, objectives: list[str], copies: Copies = COPIES, **settings: object) -> Featurizer:
    pattern = settings.pop("parameters", None)
    parameters = model.parameters(pattern)  # type: ignore[arg-type]
    projection = make_projection("identity", 0, {name: tuple(value.shape) for name, value in parameters.items()}, 0)
    functions = [get_objective(name) for name in objectives]
    return Featurizer(model, functions, copies, projection, parameters, **settings)  # type: ignore[arg-type]


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def brute_force(model: DiffusionModel, objective: str, clean: Tensor, pattern: str | None = None) -> Tensor:
    """torch.autograd.grad for every image and copy on its own, then the mean: [B, d]."""
    model.network.eval()
    parameters = list(model.parameters(pattern).values())
    rows = []
    for image in clean:
        total = [torch.zeros_like(value) for value in parameters]
        for timestep, draw in COPIES.pairs():
            noise = gaussian(model.shape, COPIES.seed, timestep, draw)[None]
            t = torch.tensor([timestep])
            predicted = model.predict_target(model.process.add_noise(image[None], noise, t), t)
            loss = get_objective(objective)(predicted, noise, model.process.elbo_weights(t)).sum()
            for sum_, one in zip(total, torch.autograd.grad(loss, parameters), strict=True):
                sum_ += one / len(COPIES.pairs())
        rows.append(torch.cat([value.flatten() for value in total]))
    return torch.stack(rows)


@pytest.mark.parametrize("batch_size", [1, 2, 3, None])
@pytest.mark.parametrize("name", MODELS)
def test_features_are_the_mean_gradient(name: str, batch_size: int | None) -> None:
    model, clean = MODELS[name](), tiny.clean_images(3)
    if name in DEFEAT_HOOKS and batch_size not in (1, None):
        with pytest.raises(UsageError, match=f"batch-size {batch_size}"):
            features(model, ["square"], batch_size=batch_size)
        return
    found = features(model, ["square", "simple"], batch_size=batch_size)(clean, [0, 1, 2])
    for row, objective in enumerate(["square", "simple"]):
        assert relative_error(found[row], brute_force(model, objective, clean)) < 1e-5


@pytest.mark.parametrize("objective", [*OBJECTIVES, "interpolated(0.3)"])
def test_every_objective_goes_through(objective: str) -> None:
    model, clean = tiny.unet(), tiny.clean_images(2)
    found = features(model, [objective])(clean, [0, 1])
    assert relative_error(found[0], brute_force(model, objective, clean)) < 1e-5


def test_features_equal_the_papers_vmap() -> None:
    """vmap(grad) over the images for each timestep, summed and divided by K."""
    model, clean = tiny.unet(), tiny.clean_images(3)
    network = model.network.eval()
    weights = {name: value.detach() for name, value in network.named_parameters()}
    total = torch.zeros(3, sum(value.numel() for value in weights.values()))
    for timestep, draw in COPIES.pairs():
        noise = gaussian(model.shape, COPIES.seed, timestep, draw)
        t = torch.tensor([timestep])

        def loss(values: dict[str, Tensor], image: Tensor, noise: Tensor = noise, t: Tensor = t) -> Tensor:
            noisy = model.process.add_noise(image[None], noise[None], t)
            return functional_call(network, values, (noisy, t)).sample.square().mean()

        gradients = vmap(grad(loss), (None, 0), randomness="different")(weights, clean)
        total += torch.cat([value.flatten(1) for value in gradients.values()], 1)
    assert relative_error(features(model, ["square"])(clean, [0, 1, 2])[0], total / len(COPIES.pairs())) < 1e-5


@pytest.mark.parametrize("noise", ["shared", "per-image"])
def test_a_feature_depends_on_its_image_alone(noise: str) -> None:
    """Not on batch size, order, company, or how many copies share a pass."""
    model, clean = tiny.unet(), tiny.clean_images(8)
    copies = Copies((0, 300, 900), noise=noise)
    expected = features(model, ["square"], copies, batch_size=1)(clean, range(8))
    for batch_size in (1, 3, 8):
        engine = features(model, ["square"], copies, batch_size=batch_size)
        assert relative_error(engine(clean, range(8)), expected) < 1e-5
        order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
        assert relative_error(engine(clean[order], order.tolist()), expected[:, order]) < 1e-5
        engine.copies_at_once = 2
        assert relative_error(engine(clean, range(8)), expected) < 1e-5


def test_noise_is_shared_unless_asked_otherwise() -> None:
    model = tiny.unet()
    twice = tiny.clean_images(1).repeat(2, 1, 1, 1)
    shared = features(model, ["square"])(twice, ["a", "b"])[0]
    own = features(model, ["square"], Copies((0, 300), noise="per-image"))(twice, ["a", "b"])[0]
    torch.testing.assert_close(shared[0], shared[1])
    assert relative_error(own[0], own[1]) > 0.01


def test_noise_that_makes_no_sense_is_named() -> None:
    with pytest.raises(UsageError, match="unknown noise 'by-place:52:1000': choose from shared, per-image"):
        Settings(noise="by-place:52:1000")


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("pattern", ["conv_out", "up_blocks", r"attentions.*to_q"])
def test_a_pattern_selects_parameters_and_ends_the_backward_pass(pattern: str, batch_size: int) -> None:
    model, clean = tiny.unet(), tiny.clean_images(2)
    found = features(model, ["square"], parameters=pattern, batch_size=batch_size)(clean, [0, 1])[0]
    assert relative_error(found, brute_force(model, "square", clean, pattern)) < 1e-5


def test_the_backward_pass_stops_at_the_deepest_chosen_parameter() -> None:
    model = tiny.unet()
    reached = []
    for name, layer in model.network.named_modules():
        if name in ("conv_in", "mid_block.resnets.0.conv1", "up_blocks.0.resnets.0.conv1"):
            layer.register_full_backward_hook(lambda *_, name=name: reached.append(name))  # type: ignore[misc]
    for batch_size in (1, 2):
        features(model, ["square"], parameters="up_blocks", batch_size=batch_size)(tiny.clean_images(2), [0, 1])
    assert set(reached) == {"up_blocks.0.resnets.0.conv1"}


def test_a_model_is_left_as_it_was() -> None:
    model = tiny.unet()
    model.network.train()
    model.network.conv_in.weight.requires_grad_(False)  # type: ignore[union-attr]
    for batch_size in (1, 2):
        features(model, ["square"], batch_size=batch_size)(tiny.clean_images(2), [0, 1])
    assert model.network.training
    flags = {name: value.requires_grad for name, value in model.network.named_parameters()}
    assert [name for name, flag in flags.items() if not flag] == ["conv_in.weight"]
    assert all(value.grad is None for value in model.network.parameters())
    assert not any(layer._forward_hooks for layer in model.network.modules())


def test_sharing_a_pass_is_refused_where_hooks_would_miss_something() -> None:
    assert can_share_a_pass(tiny.unet(), set(tiny.unet().parameters()))
    assert can_share_a_pass(tiny.mixed(), set(tiny.mixed().parameters()))
    assert can_share_a_pass(tiny.tables(), set(tiny.tables().parameters()))
    assert not can_share_a_pass(tiny.hidden(), set(tiny.hidden().parameters()))
    assert not can_share_a_pass(tiny.unbatched(), set(tiny.unbatched().parameters()))


def test_autocast_stays_close_to_float32() -> None:
    model, clean = tiny.unet(), tiny.clean_images(2)
    exact = features(model, ["square"])(clean, [0, 1])
    for batch_size in (1, 2):
        engine = features(model, ["square"], autocast=True, batch_size=batch_size)
        assert 0 < relative_error(engine(clean, [0, 1]), exact) < 0.05


class Explodes(nn.Module):
    """Fine, but for one bright image at late timesteps: there its output, or only its gradient, is not finite."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.where = where

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        bad = ((t >= 300) & (x.amax((1, 2, 3)) > 50)).view(-1, 1, 1, 1)
        if self.where == "output":
            return torch.where(bad, torch.inf, self.scale * x)
        # √s has an infinite slope at s = 0, which is where the bad copies are.
        return x * torch.sqrt(self.scale * (~bad).float())


@pytest.mark.parametrize("where", ["output", "gradient"])
def test_what_is_not_finite_is_named_by_image_and_timestep(where: str) -> None:
    model = DiffusionModel(Explodes(where), DDPMScheduler(), tiny.SHAPE)
    clean = tiny.clean_images(3)
    clean[1] = 1000
    engine = features(model, ["square"], Copies((0, 300, 600)), batch_size=1)
    with pytest.raises(DtrakError, match=rf"{where}.*image cat.png.*timestep 300"):
        engine(clean, ["dog.png", "cat.png", "cow.png"])
    assert engine(clean[[0, 2]], ["dog.png", "cow.png"]).isfinite().all()
