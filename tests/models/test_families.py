"""Every family, opened from a folder that diffusers saved, against diffusers' own pipelines and losses of training."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, DiffusionPipeline, FlowMatchEulerDiscreteScheduler
from peft import LoraConfig, get_peft_model, inject_adapter_in_model
from torch import Tensor

from dtrak import attribute
from dtrak.features.model_inputs import model_inputs
from dtrak.features.spec import Spec
from dtrak.images.images import Images
from dtrak.models import load_model
from dtrak.models.sampling import sample
from dtrak.noise import gaussian
from featurized import featurize
from tiny_pipelines import MAKERS, SIDE, latent_diffusion_kl, pixart_alpha, save_tiny
from training_losses import FLOWS, latents_by_diffusers, network_of, training_loss

OTHERS = {"pixart-alpha": pixart_alpha, "latent-diffusion-kl": latent_diffusion_kl}
USUAL = ("stable-diffusion-xl", "stable-diffusion-3", "flux", "pixart", "dit", "latent-diffusion")
FAMILIES = [
    pytest.param(kind, marks=[] if kind in USUAL else [pytest.mark.slow], id=kind) for kind in [*MAKERS, *OTHERS]
]
TARGETS = ["to_q", "to_k", "to_v", "to_out.0"]
TIMESTEPS = (100, 700)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of each family's pipeline, made when it is first asked for."""
    home, made = tmp_path_factory.mktemp("families"), {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = save_tiny(kind, home / kind, OTHERS.get(kind))
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


def told_as_text(images: Images) -> list[str]:
    return [str(one) for one in images.columns["label" if "label" in images.columns else "caption"]]


def compare_features(kind: str, model: Any, pipeline: Any, images: Images, folder: Path) -> None:
    """Compare features, the mean over timesteps and every copy apart, with autograd's gradients."""
    named = {
        name: value for name, value in network_of(pipeline).named_parameters() if not model.has_lora or "lora_" in name
    }
    latents = latents_by_diffusers(pipeline, images.tensor(range(len(images))))
    assert torch.allclose(model_inputs(model, images).tensor(range(len(images))), latents, atol=1e-5)
    settings = Spec(
        timesteps=",".join(map(str, TIMESTEPS)), projection="identity", layers="usual" if model.has_lora else "all"
    )
    mean = featurize(model, images, ["simple"], settings, folder, "mean")["simple"].numpy()
    apart = featurize(model, images, ["simple"], replace(settings, copies="apart"), folder, "apart")["simple"].numpy()
    assert [*model.parameters()] == [*named]
    for row in range(len(images)):
        rows = []
        for t in TIMESTEPS:
            noise = gaussian(tuple(latents.shape[1:]), 0, t, 0)[None]
            loss = training_loss(kind, pipeline, latents[row : row + 1], noise, t, told_as_text(images)[row])
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
    if kind in FLOWS:
        shift = {"shift": 3.0} if kind == "sana" else {}
        pipeline.scheduler = FlowMatchEulerDiscreteScheduler.from_config(
            pipeline.scheduler.config, use_dynamic_shifting=False, **shift
        )
        # the scheduler shifts the σ that it is given, so that they are given without a shift
        settings |= {"sigmas": [(t + 1) / 1000 for t in (999, 749, 500, 250, 0)]}
        if kind == "flux":
            start = pipeline._pack_latents(start, len(start), *start.shape[1:])
    else:
        pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config, clip_sample=False)
    if kind in ("pixart", "sana"):
        settings |= {"use_resolution_binning": False, "clean_caption": False}
    if kind == "lumina":
        settings |= {"cfg_normalization": False}
    if kind in ("aura-flow", "lumina"):
        settings |= {"negative_prompt": [""] * len(prompts)}
    side = 2 * start.shape[2] if start.dim() == 4 else SIDE
    images: Tensor = pipeline(list(prompts), latents=start, height=side, width=side, **settings).images
    return images


@pytest.mark.parametrize(
    "kind", [kind for kind in FAMILIES if kind.id in MAKERS and kind.id not in ("dit", "latent-diffusion")]
)
def test_pictures_are_those_that_diffusers_draws(kind: str, folders: Callable[[str], Path]) -> None:
    side = 32 if kind == "sana" else SIDE  # its pipeline refuses smaller ones
    model = load_model(str(folders(kind))).fitted_to((3, side, side))
    prompts, start = ["a disc by anna", "bert"], torch.stack([gaussian(model.shape, seed, "x_T") for seed in (3, 4)])
    for guidance in (4.0, 1.0):
        drawn = sample(model, [3, 4], 5, prompts=prompts, guidance=None if guidance == 1.0 else guidance)
        if kind == "flux" and guidance == 1.0:
            guidance = 3.5  # the strength that a distilled network is trained with
        expected = drawn_by_diffusers(kind, open_by_diffusers(folders(kind)), prompts, start, guidance)
        torch.testing.assert_close((drawn.pictures + 1) / 2, expected, rtol=0, atol=2e-4)


def test_pictures_of_classes(folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, pipeline = load_model(str(folders("dit"))), open_by_diffusers(folders("dit"))
    start = torch.stack([gaussian(model.shape, seed, "x_T") for seed in (3, 4)])
    monkeypatch.setattr("diffusers.pipelines.dit.pipeline_dit.randn_tensor", lambda **_: start)
    for guidance in (4.0, 1.0):
        drawn = sample(model, [3, 4], 5, prompts=["circle", "2"], guidance=guidance)
        expected = pipeline([0, 2], guidance, num_inference_steps=5, output_type="pt").images
        torch.testing.assert_close((drawn.pictures + 1) / 2, expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("kind", ["latent-diffusion", "latent-diffusion-kl"])
def test_pictures_without_a_condition(
    kind: str, folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, pipeline = load_model(str(folders(kind))), open_by_diffusers(folders(kind))
    start = torch.stack([gaussian(model.shape, seed, "x_T") for seed in (3, 4)])
    module = "diffusers.pipelines.deprecated.latent_diffusion_uncond.pipeline_latent_diffusion_uncond"
    monkeypatch.setattr(f"{module}.randn_tensor", lambda *_, **__: start)
    expected = pipeline(2, num_inference_steps=5, output_type="np").images.transpose(0, 3, 1, 2)
    drawn = (sample(model, [3, 4], 5).pictures + 1) / 2
    torch.testing.assert_close(drawn, torch.from_numpy(expected), rtol=0, atol=2e-4)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_pipeline_object_is_attributed(kind: str, folders: Callable[[str], Path], told: Images) -> None:
    """Scores of the object are those of its folder."""
    settings: dict[str, Any] = {"timesteps": 2, "parameters": "attn|attentions", "projection_dim": 512}
    scores = attribute(open_by_diffusers(folders(kind)), told, told, **settings)
    assert scores.values.any()
    of_folder = attribute(str(folders(kind)), told, told, **settings)
    np.testing.assert_allclose(scores.values, of_folder.values, rtol=1e-4, atol=1e-6)
