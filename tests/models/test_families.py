"""Every family, opened from a folder that diffusers saved, against diffusers' own pipelines and losses of training."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, DiffusionPipeline, DiTPipeline
from peft import LoraConfig, get_peft_model, inject_adapter_in_model
from torch import Tensor

from dtrak import attribute
from dtrak.features.featurizing import FeatureSettings, featurize
from dtrak.features.inputs import model_inputs
from dtrak.images.images import Images
from dtrak.models import load_model
from dtrak.models.sampling import sample
from dtrak.noise import gaussian
from tiny_pipelines import MAKERS, SIDE, pixart_alpha, save_tiny

FAMILIES = [*MAKERS, "pixart-alpha"]
TARGETS = ["to_q", "to_k", "to_v", "to_out.0"]
TIMESTEPS = (100, 700)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of each family's pipeline, made when it is first asked for."""
    home, made = tmp_path_factory.mktemp("families"), {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = save_tiny(kind, home / kind, pixart_alpha if kind == "pixart-alpha" else None)
            if kind == "dit":  # diffusers' own folders of DiT have the names of their classes here
                index = made[kind] / "model_index.json"
                names = {"0": "disc, circle", "1": "stripe", "2": "diamond"}
                index.write_text(json.dumps(json.loads(index.read_text()) | {"id2label": names}))
        return made[kind]

    return folder


@pytest.fixture
def told(kind: str, paintings: Images) -> Images:
    """Three paintings with what the family takes: captions, or classes by name and by number."""
    few = paintings.select([0, 4, 8])
    return few if kind != "dit" else few_with(few, label=np.array(["circle", "stripe", "2"]))


def few_with(images: Images, **columns: Any) -> Images:
    from dataclasses import replace

    return replace(images, columns={**images.columns, **columns})


def open_by_diffusers(folder: Path) -> Any:
    pipeline = DiffusionPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def network_of(pipeline: Any) -> Any:
    return (pipeline.unet if hasattr(pipeline, "unet") else pipeline.transformer).eval()


def words_of(images: Images) -> list[str]:
    return [str(one) for one in images.columns["caption"]]


@torch.no_grad()
def latents_by_diffusers(pipeline: Any, images: Images) -> Tensor:
    config = pipeline.vae.config
    latents = pipeline.vae.encode(images.tensor(range(len(images)))).latent_dist.mode()
    return (latents - (config.shift_factor or 0.0)) * config.scaling_factor


def loss_of_training(kind: str, pipeline: Any, latents: Tensor, noise: Tensor, t: int, images: Images) -> Tensor:
    """As diffusers' scripts for training compute it, for one image."""
    network = network_of(pipeline)
    prompts = words_of(images)
    if kind in ("stable-diffusion-3", "flux"):
        scheduler = pipeline.scheduler
        sigma, timestep = scheduler.sigmas[999 - t], scheduler.timesteps[999 - t].view(1)
        noisy = (1.0 - sigma) * latents + sigma * noise
        if kind == "flux":
            with torch.no_grad():
                words, pooled, text_ids = pipeline.encode_prompt(prompts, prompts)
            height, width = latents.shape[2:]
            output = network(
                hidden_states=pipeline._pack_latents(noisy, 1, latents.shape[1], height, width),
                timestep=timestep / 1000,
                guidance=torch.tensor([3.5]),
                pooled_projections=pooled,
                encoder_hidden_states=words,
                txt_ids=text_ids,
                img_ids=pipeline._prepare_latent_image_ids(1, height // 2, width // 2, "cpu", torch.float32),
                return_dict=False,
            )[0]
            predicted = pipeline._unpack_latents(output, SIDE, SIDE, pipeline.vae_scale_factor)
        else:
            with torch.no_grad():
                words, _, pooled, _ = pipeline.encode_prompt(prompts, prompts, prompts)
            predicted = network(
                hidden_states=noisy, timestep=timestep, encoder_hidden_states=words, pooled_projections=pooled
            ).sample
        return (predicted - (noise - latents)).square().mean()
    betas = DDIMScheduler.from_config(pipeline.scheduler.config)
    timestep = torch.tensor([t])
    noisy = betas.add_noise(latents, noise, timestep)
    if kind == "stable-diffusion-xl":
        with torch.no_grad():
            words, _, pooled, _ = pipeline.encode_prompt(prompts)
        added = {"text_embeds": pooled, "time_ids": torch.tensor([[SIDE, SIDE, 0, 0, SIDE, SIDE]])}
        predicted = network(noisy, timestep, words, added_cond_kwargs=added).sample
    elif kind.startswith("pixart"):
        with torch.no_grad():
            words, mask, _, _ = pipeline.encode_prompt(prompts)
        added = {"resolution": None, "aspect_ratio": None}
        if kind == "pixart-alpha":
            added = {"resolution": torch.tensor([[SIDE, SIDE]]).float(), "aspect_ratio": torch.tensor([[1.0]])}
        predicted = network(
            noisy,
            encoder_hidden_states=words,
            encoder_attention_mask=mask,
            timestep=timestep,
            added_cond_kwargs=added,
        ).sample.chunk(2, 1)[0]
    else:
        label = {"circle": 0, "stripe": 1, "2": 2}[str(images.columns["label"][0])]
        output = network(noisy, timestep=timestep, class_labels=torch.tensor([label])).sample
        predicted = output.chunk(2, 1)[0]
    return (predicted - noise).square().mean()


def compare_features(kind: str, model: Any, pipeline: Any, images: Images, folder: Path) -> None:
    """Compare features, the mean over timesteps and every copy apart, with autograd's gradients."""
    named = {
        name: value
        for name, value in network_of(pipeline).named_parameters()
        if not model.has_lora or "lora_" in name
    }
    latents = latents_by_diffusers(pipeline, images)
    assert torch.allclose(model_inputs(model, images).tensor(range(len(images))), latents, atol=1e-5)
    settings = FeatureSettings(timesteps=",".join(map(str, TIMESTEPS)), projection="identity")
    mean = featurize(model, images, ["simple"], settings, folder, "mean")["simple"].numpy()
    apart = featurize(model, images, ["simple"], settings, folder, "apart", apart=True)["simple"].numpy()
    assert [*model.parameters()] == [*named]
    for row in range(len(images)):
        rows = []
        for t in TIMESTEPS:
            noise = gaussian(tuple(latents.shape[1:]), 0, t, 0)[None]
            loss = loss_of_training(kind, pipeline, latents[row : row + 1], noise, t, images.select([row]))
            found = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
            rows.append(torch.cat([one.flatten() for one in found]))
        close(torch.from_numpy(mean[row]), torch.stack(rows).mean(0))
        for copy, expected in enumerate(rows):
            close(torch.from_numpy(apart[row].reshape(len(TIMESTEPS), -1)[copy]), expected)


def close(found: Tensor, expected: Tensor) -> None:
    assert float((found - expected).norm() / expected.norm()) < 1e-4


@pytest.mark.parametrize("kind", FAMILIES)
def test_features_are_the_gradients_of_diffusers_own_loss(
    kind: str, folders: Callable[[str], Path], told: Images, tmp_path: Path
) -> None:
    folder = folders(kind)
    model = load_model(str(folder)).fitted_to(told.shape)
    compare_features(kind, model, open_by_diffusers(folder), told.select([0, 1]), tmp_path)


@pytest.mark.parametrize("kind", FAMILIES)
def test_features_of_a_lora(kind: str, folders: Callable[[str], Path], told: Images, tmp_path: Path) -> None:
    """One that peft trained and saved, which diffusers' network takes as well."""
    folder, pipeline = folders(kind), open_by_diffusers(folders(kind))
    save_peft(network_of(open_by_diffusers(folder)), tmp_path / "lora")
    from peft import load_peft_weights, set_peft_model_state_dict

    network = network_of(pipeline)
    inject_adapter_in_model(LoraConfig.from_pretrained(str(tmp_path / "lora")), network, "default")
    weights = load_peft_weights(str(tmp_path / "lora"), "cpu")
    prefix = "base_model.model."
    set_peft_model_state_dict(network, {name.removeprefix(prefix): one for name, one in weights.items()})
    for name, value in network.named_parameters():
        value.requires_grad_("lora_" in name)
    model = load_model(str(folder), lora=str(tmp_path / "lora")).fitted_to(told.shape)
    compare_features(kind, model, pipeline, told, tmp_path)


def save_peft(network: Any, folder: Path) -> None:
    adapted = get_peft_model(network, LoraConfig(r=2, lora_alpha=4, target_modules=TARGETS))
    for name, value in adapted.named_parameters():
        if "lora_" in name:
            value.data = gaussian(tuple(value.shape), name) / 5
    adapted.save_pretrained(folder)


def drawn_by_diffusers(kind: str, pipeline: Any, prompts: Sequence[str], start: Tensor, guidance: float) -> Tensor:
    """Five steps through the timesteps that dtrak's solver passes."""
    settings: dict[str, Any] = {"num_inference_steps": 5, "guidance_scale": guidance, "output_type": "pt"}
    if kind in ("stable-diffusion-3", "flux"):
        # pipelines shift the σ that they are given, so that they are given those without a shift
        wanted = torch.tensor([(t + 1) / 1000 for t in (999, 749, 500, 250, 0)])
        if kind == "flux":
            pipeline.scheduler.register_to_config(use_dynamic_shifting=False, shift=1.0)
            start = pipeline._pack_latents(start, len(start), *start.shape[1:])
        settings |= {"sigmas": wanted.tolist()}
    else:
        pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config, clip_sample=False)
    if kind.startswith("pixart"):
        settings |= {"use_resolution_binning": False, "clean_caption": False}
    images: Tensor = pipeline(list(prompts), latents=start, height=SIDE, width=SIDE, **settings).images
    return images


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if kind != "dit"])
def test_pictures_are_those_that_diffusers_draws(kind: str, folders: Callable[[str], Path]) -> None:
    model = load_model(str(folders(kind))).fitted_to((3, SIDE, SIDE))
    prompts, start = ["a disc by anna", "bert"], torch.stack([gaussian(model.shape, seed, "x_T") for seed in (3, 4)])
    for guidance in (4.0, 1.0):
        drawn = sample(model, [3, 4], 5, prompts=prompts, guidance=None if guidance == 1.0 else guidance)
        if kind == "flux" and guidance == 1.0:
            guidance = 3.5  # the strength that a distilled network is trained with
        expected = drawn_by_diffusers(kind, open_by_diffusers(folders(kind)), prompts, start, guidance)
        torch.testing.assert_close((drawn.pictures + 1) / 2, expected, rtol=0, atol=2e-4)


def test_pictures_of_classes(folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, pipeline = load_model(str(folders("dit"))), open_by_diffusers(folders("dit"))
    assert isinstance(pipeline, DiTPipeline)
    start = torch.stack([gaussian(model.shape, seed, "x_T") for seed in (3, 4)])
    monkeypatch.setattr("diffusers.pipelines.dit.pipeline_dit.randn_tensor", lambda **_: start)
    for guidance in (4.0, 1.0):
        drawn = sample(model, [3, 4], 5, prompts=["circle", "2"], guidance=guidance)
        expected = pipeline([0, 2], guidance, num_inference_steps=5, output_type="pt").images
        torch.testing.assert_close((drawn.pictures + 1) / 2, expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_pipeline_object_is_attributed(kind: str, folders: Callable[[str], Path], told: Images) -> None:
    """Scores of the object are those of its folder."""
    settings: dict[str, Any] = {"timesteps": 2, "parameters": "attn|attentions", "projection_dim": 512}
    scores = attribute(open_by_diffusers(folders(kind)), told, told, **settings)
    assert (scores.values.argmax(1) == np.arange(3)).all()
    of_folder = attribute(str(folders(kind)), told, told, **settings)
    np.testing.assert_allclose(scores.values, of_folder.values, rtol=1e-4, atol=1e-6)
