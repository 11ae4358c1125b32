"""Models that are told more than Stable Diffusion is, wrapped: a transformer of SD3's kind and a U-Net of SDXL's."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, DDPMScheduler, FlowMatchEulerDiscreteScheduler, UNet2DConditionModel
from torch import Tensor, nn

from dtrak import DiffusionModel, attribute
from dtrak.features.spec import Spec
from dtrak.images.images import load_images
from dtrak.models.autoencoder import Autoencoder
from dtrak.models.conditions import Condition
from dtrak.models.prompts import Prompts
from dtrak.models.sampling import sample
from dtrak.noise import gaussian
from dtrak.runs.recipes import Training
from dtrak.runs.training import Trainer
from featurized import featurize
from test_flow_matching import SHAPE, small_transformer
from tiny_stable_diffusion import save_paintings


class SD3(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = small_transformer()

    def forward(self, x: Tensor, t: Tensor, words: Tensor, pooled: Tensor) -> Tensor:
        answer: Tensor = self.transformer(x, words, pooled, t).sample
        return answer


class SDXL(nn.Module):
    """It is also told the size and the crop of its pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.unet = UNet2DConditionModel(
            sample_size=8,
            in_channels=1,
            out_channels=1,
            block_out_channels=(8, 16),
            layers_per_block=1,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            norm_num_groups=4,
            cross_attention_dim=16,
            attention_head_dim=2,
            addition_embed_type="text_time",
            addition_time_embed_dim=4,
            projection_class_embeddings_input_dim=16 + 6 * 4,
        )

    def forward(self, x: Tensor, t: Tensor, words: Tensor, pooled: Tensor) -> Tensor:
        height, width = x.shape[2:]
        sizes = torch.tensor([height, width, 0, 0, height, width], device=x.device).expand(len(x), 6)
        answer: Tensor = self.unet(x, t, words, added_cond_kwargs={"text_embeds": pooled, "time_ids": sizes}).sample
        return answer


class LettersAndLength:
    """Two text encoders side by side: one vector for each of three letters, and one for the whole."""

    def __call__(self, texts: Sequence[str]) -> Condition:
        letters = [[gaussian((16,), letter) for letter in text.ljust(3)[:3]] for text in texts]
        return {
            "words": torch.stack([torch.stack(one) for one in letters]),
            "pooled": torch.stack([gaussian((16,), len(text)) for text in texts]),
        }

    def to(self, device: str | torch.device) -> None: ...


def wrapped(kind: str) -> DiffusionModel:
    torch.manual_seed(0)
    flow = FlowMatchEulerDiscreteScheduler(shift=3.0)
    network, scheduler = (SD3(), flow) if kind == "SD3" else (SDXL(), DDPMScheduler())
    return DiffusionModel(network, scheduler, SHAPE, conditioner=Prompts(LettersAndLength(), "{label}"))


def training_loss(model: DiffusionModel, clean: Tensor, noise: Tensor, t: int, told: Condition) -> Tensor:
    """As diffusers' own schedulers and the network give it."""
    if isinstance(model.scheduler, FlowMatchEulerDiscreteScheduler):
        sigma = model.scheduler.sigmas[999 - t]
        answer = model.network((1 - sigma) * clean + sigma * noise, 1000 * sigma.view(1), **told)
        return (answer - (noise - clean)).square().mean()
    noisy = model.scheduler.add_noise(clean, noise, torch.tensor([t]))
    return (model.network(noisy, torch.tensor([t]), **told) - noise).square().mean()


@pytest.mark.parametrize("kind", ["SD3", "SDXL"])
def test_prompts_go_through_several_encoders(kind: str, tmp_path: Path) -> None:
    """Features are gradients given the prompt, guidance tells pictures apart, and training knows both."""
    model, images = wrapped(kind), load_images("digits:train").select(range(20))
    trainer = Trainer(model, images, Training(epochs=5, batch_size=10, learning_rate=3e-3, prompt_dropout=0.1))
    while trainer.step < trainer.steps:
        trainer.take_step()
    settings = Spec(timesteps="300,800", projection="identity")
    found = torch.from_numpy(featurize(model, images, ["simple"], settings, tmp_path, "train")["simple"].numpy()[4])
    told, clean = LettersAndLength()([str(images.columns["label"][4])]), images.tensor([4])
    losses = [training_loss(model, clean, gaussian(SHAPE, 0, t, 0)[None], t, told) for t in (300, 800)]
    gradients = torch.autograd.grad(sum(losses) / 2, list(model.network.parameters()), materialize_grads=True)
    expected = torch.cat([one.flatten() for one in gradients])
    assert float((found - expected).norm() / expected.norm()) < 1e-4
    pictures = [sample(model, [0], 5, prompts=[one], guidance=3.0).pictures for one in ("1", "2", "1")]
    assert torch.equal(pictures[0], pictures[2])
    assert not torch.allclose(pictures[0], pictures[1], atol=1e-3)


def test_a_wrapped_latent_model_is_attributed(tmp_path: Path) -> None:
    """As the documentation tells: a module, an autoencoder and text encoders, each one's own."""
    torch.manual_seed(0)
    vae = AutoencoderKL(
        block_out_channels=(4, 4),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=2,
        latent_channels=1,
    ).eval()
    prompts = Prompts(LettersAndLength())
    model = DiffusionModel(SDXL(), DDPMScheduler(), SHAPE, autoencoder=Autoencoder(vae), conditioner=prompts)
    pictures = load_images(str(save_paintings(tmp_path / "pictures", 4)))
    scores = attribute(model, pictures, pictures, timesteps=2, parameters="attentions", cache=tmp_path / "features")
    assert (scores.values.argmax(1) == np.arange(4)).all()


def test_a_flow_scheduler_that_has_drawn_is_as_good_as_new() -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    t = torch.tensor([20, 500, 999])
    expected = DiffusionModel(SD3(), scheduler, SHAPE).process.time(t)
    scheduler.set_timesteps(7)
    assert torch.equal(DiffusionModel(SD3(), scheduler, SHAPE).process.time(t), expected)
