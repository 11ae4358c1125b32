"""Noise that explodes (score-based models, EDM) and predictions of the image, against diffusers' own formulas."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    DDPMScheduler,
    EDMDPMSolverMultistepScheduler,
    EDMEulerScheduler,
    ScoreSdeVePipeline,
    ScoreSdeVeScheduler,
    StableDiffusionXLPipeline,
    UNet2DModel,
)
from torch import Tensor

from commands import dtrak
from dtrak import DiffusionModel
from dtrak.features.spec import Spec
from dtrak.images.images import Images, load_images
from dtrak.models import load_model
from dtrak.models.sampling import sample
from dtrak.noise import gaussian
from featurized import featurize
from tiny_pipelines import save_tiny

SHAPE, TIMESTEPS = (1, 8, 8), (0, 300, 999)
EDM = [EDMEulerScheduler, EDMDPMSolverMultistepScheduler]


def unet(**settings: Any) -> UNet2DModel:
    torch.manual_seed(0)
    made = UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        block_out_channels=(4, 8),
        layers_per_block=1,
        down_block_types=("DownBlock2D",) * 2,
        up_block_types=("UpBlock2D",) * 2,
        norm_num_groups=2,
        **settings,
    )
    return made.requires_grad_().eval()  # those of Fourier's features as well, which are all kept


def digits() -> Images:
    return load_images("digits:train").first(2)


def features(model: DiffusionModel, folder: Path) -> np.ndarray:
    settings = Spec(timesteps=",".join(map(str, TIMESTEPS)), projection="identity")
    found: np.ndarray = featurize(model, digits(), ["simple"], settings, folder, "train")["simple"].numpy()
    return found


def compare(found: np.ndarray, network: Any, loss: Any) -> None:
    """Compare features with autograd's gradients of a loss of (clean, noise, t), averaged over timesteps."""
    for row, clean in enumerate(digits().tensor(range(2))):
        losses = [loss(clean[None], gaussian(SHAPE, 0, t, 0)[None], t) for t in TIMESTEPS]
        gradients = torch.autograd.grad(torch.stack(losses).mean(), list(network.parameters()))
        expected = torch.cat([one.flatten() for one in gradients]).numpy()
        assert np.linalg.norm(found[row] - expected) < 1e-4 * np.linalg.norm(expected)


def test_a_score_based_model(tmp_path: Path) -> None:
    """NCSN++ works on pixels in [0, 1] and predicts −ε / σ; its loss is the mean of (σ · score + ε)²."""
    scheduler, network = ScoreSdeVeScheduler(num_train_timesteps=1000), unet(time_embedding_type="fourier")
    ScoreSdeVePipeline(network, scheduler).save_pretrained(tmp_path / "model")
    model = load_model(str(tmp_path / "model"))
    assert model.process.timesteps == 1000

    def loss(clean: Tensor, noise: Tensor, t: int) -> Tensor:
        noisy, sigma = scheduler.add_noise((clean + 1) / 2, noise, torch.tensor([t])), scheduler.discrete_sigmas[t]
        return (sigma * network(noisy, sigma.view(1)).sample + noise).square().mean()

    compare(features(model, tmp_path), network, loss)


def test_pictures_of_a_score_based_model() -> None:
    """If the score is known in closed form, Euler's solver leads from the noise to the image."""
    clean = digits().tensor([0])

    class Known(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.clean = torch.nn.Parameter((clean + 1) / 2)

        def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
            return (self.clean - x) / sigma.view(-1, 1, 1, 1) ** 2

    model = DiffusionModel(Known(), ScoreSdeVeScheduler(), SHAPE)
    drawn = sample(model, [3], 20, trajectory=True)
    torch.testing.assert_close(drawn.pictures, clean, rtol=0, atol=1e-3)
    assert drawn.estimates is not None
    torch.testing.assert_close(drawn.estimates[-1], clean, rtol=0, atol=1e-3)
    assert model.solver(20).init_noise_sigma > 1000


@pytest.mark.parametrize("kind", EDM)
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_an_edm(kind: Any, prediction: str, tmp_path: Path) -> None:
    """Preconditioning, targets and gradients are those of diffusers' scheduler."""
    network, scheduler = unet(), kind(prediction_type=prediction, sigma_data=0.7)
    network.save_pretrained(tmp_path / "model" / "unet")
    scheduler.save_pretrained(tmp_path / "model" / "scheduler")
    model = load_model(str(tmp_path / "model"))
    levels = kind._compute_karras_sigmas(scheduler, torch.linspace(0, 1, 1000, dtype=torch.float64)).float().flip(0)

    def denoised(noisy: Tensor, sigma: Tensor) -> Tensor:
        output = network(scheduler.precondition_inputs(noisy, sigma), scheduler.precondition_noise(sigma)).sample
        found: Tensor = scheduler.precondition_outputs(noisy, output, sigma)
        return found

    def loss(clean: Tensor, noise: Tensor, t: int) -> Tensor:
        sigma = levels[t].view(1)
        noisy = clean + sigma * noise
        return ((noisy - denoised(noisy, sigma)) / sigma - noise).square().mean()

    compare(features(model, tmp_path), network, loss)
    clean, noise, t = digits().tensor([0]), gaussian((1, *SHAPE), 1), torch.tensor([500])
    noisy, target = model.process.add_noise(clean, noise, t), model.process.training_target(clean, noise, t)
    torch.testing.assert_close(scheduler.precondition_outputs(noisy, target, levels[t].view(-1, 1, 1, 1)), clean)


def test_pictures_of_an_edm() -> None:
    """Four steps are those of diffusers' solver."""
    network, scheduler = unet(), EDMEulerScheduler()
    scheduler.set_timesteps(4)
    x = gaussian(SHAPE, 3, "x_T")[None] * scheduler.init_noise_sigma
    with torch.no_grad():
        for t in scheduler.timesteps:
            x = scheduler.step(network(scheduler.scale_model_input(x, t), t).sample, t, x).prev_sample
    found = sample(DiffusionModel(network, EDMEulerScheduler(), SHAPE), [3], 4).pictures
    torch.testing.assert_close(found, x.clamp(-1, 1), rtol=0, atol=1e-4)


def test_a_pipeline_with_edm(tmp_path: Path) -> None:
    """Stable Diffusion XL's network may be trained with EDM; its pictures are those of diffusers' pipeline."""
    folder = save_tiny("stable-diffusion-xl", tmp_path / "model")
    EDMEulerScheduler().save_pretrained(folder / "scheduler")
    index = folder / "model_index.json"
    index.write_text(index.read_text().replace("EulerDiscreteScheduler", "EDMEulerScheduler"))
    model, pipeline = load_model(str(folder)), StableDiffusionXLPipeline.from_pretrained(folder, add_watermarker=False)
    pipeline.set_progress_bar_config(disable=True)
    start = gaussian(model.shape, 3, "x_T")[None]
    expected = pipeline(["a disc"], latents=start, num_inference_steps=4, guidance_scale=3.0, output_type="pt").images
    drawn = sample(model, [3], 4, prompts=["a disc"], guidance=3.0).pictures
    torch.testing.assert_close((drawn + 1) / 2, expected, rtol=0, atol=2e-4)


def test_a_network_that_predicts_the_image(tmp_path: Path) -> None:
    network, scheduler = unet(), DDPMScheduler(prediction_type="sample")
    model = DiffusionModel(network, scheduler, SHAPE)

    def loss(clean: Tensor, noise: Tensor, t: int) -> Tensor:
        alpha = scheduler.alphas_cumprod[t]
        noisy = scheduler.add_noise(clean, noise, torch.tensor([t]))
        estimate = (noisy - alpha.sqrt() * network(noisy, torch.tensor([t])).sample) / (1 - alpha).sqrt()
        return (estimate - noise).square().mean()

    compare(features(model, tmp_path), network, loss)
    clean, noise, t = digits().tensor([0]), gaussian((1, *SHAPE), 1), torch.tensor([500])
    assert torch.equal(model.process.training_target(clean, noise, t), clean)


def test_weights_of_the_elbo() -> None:
    """They are half of the differences of KL between Gaussians, whose mean is that of diffusers' own step."""
    scheduler = ScoreSdeVeScheduler()
    t, sigmas = torch.tensor([0, 7, 1999]), scheduler.discrete_sigmas
    below = torch.stack([torch.tensor(0.0), sigmas[6], sigmas[1998]])
    steps = sigmas[t] ** 2 - below**2  # the variance of a step; its mean is x_t + steps · score
    expected = (steps / sigmas[t]) ** 2 / (2 * steps)
    torch.testing.assert_close(DiffusionModel(unet(), scheduler, SHAPE).process.elbo_weights(t), expected)


def test_a_run_of_a_score_based_model(tmp_path: Path) -> None:
    network = unet(time_embedding_type="fourier")
    ScoreSdeVePipeline(network, ScoreSdeVeScheduler()).save_pretrained(tmp_path / "model")
    words = ["--train", "digits:train", "--queries", "digits:validation", "--timesteps", "2"]
    outcome = dtrak("attribute", "--model", "model", *words, "--parameters", "conv_out", "--run", "mine", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert dtrak("generate", "mine", "--count", "1", cwd=tmp_path).code == 0
    refused = dtrak("recipes", "--from", "model", cwd=tmp_path)
    assert "model has a ScoreSdeVeScheduler: recipes train U-Nets on pixels with a DDPMScheduler only" in refused.error
