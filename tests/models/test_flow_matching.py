"""Flow matching: the process in closed form, and a small transformer of Stable Diffusion 3's kind from end to end."""

from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel
from torch import Tensor, nn

from dtrak import DiffusionModel, attribute
from dtrak.features.spec import Spec
from dtrak.images.images import load_images
from dtrak.models.noise_process import Flow
from dtrak.models.sampling import sample
from dtrak.noise import gaussian
from dtrak.runs.recipes import Training
from dtrak.runs.training import Trainer
from featurized import featurize

SHAPE = (1, 8, 8)


def small_transformer() -> SD3Transformer2DModel:
    return SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=1,
        out_channels=1,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=16,
        caption_projection_dim=16,
        pooled_projection_dim=16,
        pos_embed_max_size=4,
    )


class Unprompted(nn.Module):
    """Stable Diffusion 3's transformer, always told the same."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = small_transformer()
        for name, shape in (("words", (1, 3, 16)), ("pooled", (1, 16))):
            self.register_buffer(name, gaussian(shape, name))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        answer: Tensor = self.transformer(
            x, self.words.expand(len(x), -1, -1), self.pooled.expand(len(x), -1), t
        ).sample
        return answer


def transformer(shift: float = 3.0) -> DiffusionModel:
    torch.manual_seed(0)
    return DiffusionModel(Unprompted(), FlowMatchEulerDiscreteScheduler(shift=shift), SHAPE)


def test_the_line_from_image_to_noise() -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    flow, t = Flow(scheduler), torch.tensor([0, 500, 999])
    clean, noise = gaussian((3, *SHAPE), 0), gaussian((3, *SHAPE), 1)
    linear = torch.tensor([1, 501, 1000]) / 1000
    sigma = (3 * linear / (1 + 2 * linear)).view(-1, 1, 1, 1)  # the shift of Stable Diffusion 3
    noisy = flow.add_noise(clean, noise, t)
    torch.testing.assert_close(noisy, (1 - sigma) * clean + sigma * noise)
    torch.testing.assert_close(noisy, scheduler.scale_noise(clean, scheduler.timesteps[999 - t], noise))
    torch.testing.assert_close(flow.time(t), 1000 * sigma.flatten())
    torch.testing.assert_close(flow.training_target(clean, noise, t), noise - clean)


def test_straight_lines_are_followed_exactly() -> None:
    """Where v is constant, any number of steps leads from the noise to the image."""

    class Constant(nn.Module):
        def __init__(self, clean: Tensor, noise: Tensor) -> None:
            super().__init__()
            self.v = nn.Parameter(noise - clean)

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return self.v.expand_as(x)

    clean = gaussian(SHAPE, "clean").clamp(-1, 1)
    model = DiffusionModel(
        Constant(clean, gaussian(SHAPE, 7, "x_T")), FlowMatchEulerDiscreteScheduler(shift=3.0), SHAPE
    )
    for steps in (1, 4, 50):
        drawn = sample(model, [7], steps, trajectory=True)
        torch.testing.assert_close(drawn.pictures[0], clean, rtol=0, atol=1e-5)
        assert drawn.estimates is not None
        for estimate in drawn.estimates:
            torch.testing.assert_close(estimate[0], clean, rtol=0, atol=1e-5)
        assert drawn.timesteps[0] == 999


def test_elbo_weight_is_that_of_the_log_signal_to_noise_ratio() -> None:
    """−½ dλ/dσ of a loss in ε, whose error is (1−σ) times that in v."""
    flow, t = Flow(FlowMatchEulerDiscreteScheduler()), torch.arange(100, 900, 100)
    sigma = flow.signal_and_noise(t)[1].flatten().double().requires_grad_()
    ratio = 2 * torch.log((1 - sigma) / sigma)
    (slope,) = torch.autograd.grad(ratio.sum(), sigma)
    torch.testing.assert_close(flow.elbo_weights(t).double(), (-0.5 * slope * (1 - sigma) ** 2).detach())


def test_features_are_gradients_of_the_flow_matching_loss(tmp_path: Path) -> None:
    model, images = transformer(), load_images("digits:train").select(range(3))
    settings = Spec(timesteps="50,600", projection="identity")
    stores = featurize(model, images, ["simple", "square"], settings, tmp_path, "train")
    parameters = list(model.network.parameters())
    for row in range(3):
        losses = {"simple": torch.zeros(()), "square": torch.zeros(())}
        for t in (50, 600):
            clean, noise = images.tensor([row]), gaussian(SHAPE, 0, t, 0)[None]
            sigma = model.scheduler.sigmas[999 - t]
            v = model.network((1 - sigma) * clean + sigma * noise, 1000 * sigma.view(1))
            losses["simple"] = losses["simple"] + (v - (noise - clean)).square().mean() / 2
            losses["square"] = losses["square"] + v.square().mean() / 2
        for objective, loss in losses.items():
            gradients = torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
            expected = torch.cat([one.flatten() for one in gradients])
            found = torch.from_numpy(stores[objective].numpy()[row])
            assert float((found - expected).norm() / expected.norm()) < 1e-4


def test_a_flow_learns_and_is_attributed(tmp_path: Path) -> None:
    """Training lowers the loss, and an image made its own picture more than others did."""
    model, images = transformer(), load_images("digits:train").select(range(40))
    trainer = Trainer(model, images, Training(epochs=40, batch_size=20, learning_rate=3e-3))
    clean, noise = images.tensor(range(40)), gaussian((40, *SHAPE), "test")
    t = torch.arange(40) * 25

    def loss() -> float:
        with torch.no_grad():
            answer = model.predict(model.process.add_noise(clean, noise, t), t)
        return float((answer - model.process.training_target(clean, noise, t)).square().mean())

    before = loss()
    while trainer.step < trainer.steps:
        trainer.take_step()
    assert loss() < 0.8 * before
    scores = attribute(model, images, images.select(range(10)), "d-trak", timesteps=5, damping=0.1, cache=tmp_path)
    assert np.isfinite(scores.values).all()
    assert (scores.values.argmax(1) == np.arange(10)).mean() >= 0.9
    assert sample(model, [0], 10).pictures.shape == (1, *SHAPE)


def test_timesteps_of_the_solver_are_those_of_the_training() -> None:
    model = transformer()
    assert model.process.timesteps == 1000
    assert model.solver(5).timesteps.tolist() == [999, 749, 500, 250, 0]
    with pytest.raises(Exception, match="takes from 1 to 1000"):
        model.solver(1001)
