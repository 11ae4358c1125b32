"""Models: diffusers opens what we save and we open what it saved; the algebra of ε and v; any module can be wrapped."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import dtrak
from dtrak.errors import UsageError
from dtrak.models import DiffusionModel, load_model, save_model

UNET = {
    "block_out_channels": (8, 8),
    "layers_per_block": 1,
    "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
    "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    "attention_head_dim": 4,
    "norm_num_groups": 4,
}
WEIGHTS = "unet/diffusion_pytorch_model.safetensors"


@pytest.fixture
def unet() -> UNet2DModel:
    torch.manual_seed(0)
    return UNet2DModel(sample_size=8, in_channels=1, out_channels=1, **UNET).eval()


@pytest.fixture
def saved_by_diffusers(unet: UNet2DModel, tmp_path: Path) -> Path:
    schedule = DDPMScheduler(100, beta_schedule="squaredcos_cap_v2", prediction_type="v_prediction")
    DDPMPipeline(unet, schedule).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def some_inputs(count: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 40, 99])[:count]


# folders


@torch.no_grad()
def test_we_open_what_diffusers_saved(saved_by_diffusers: Path, unet: UNet2DModel) -> None:
    model = load_model(str(saved_by_diffusers))
    noisy, timesteps = some_inputs()
    assert torch.equal(model.predict(noisy, timesteps), unet(noisy, timesteps).sample)
    assert (model.shape, model.process.timesteps) == ((1, 8, 8), 100)
    assert model.scheduler.config.beta_schedule == "squaredcos_cap_v2"
    assert model.scheduler.config.prediction_type == "v_prediction"


@torch.no_grad()
def test_diffusers_opens_what_we_saved(finished_run: Path) -> None:
    model = load_model(str(finished_run / "model"))
    pipeline = DDPMPipeline.from_pretrained(finished_run / "model")
    noisy, timesteps = some_inputs()
    assert torch.equal(pipeline.unet(noisy, timesteps).sample, model.predict(noisy, timesteps))
    assert torch.equal(pipeline.scheduler.alphas_cumprod, model.scheduler.alphas_cumprod)
    picture = pipeline(num_inference_steps=2, output_type="np").images
    assert picture.shape == (1, 8, 8, 1)


def test_only_safetensors_and_json_are_written(finished_run: Path) -> None:
    names = {path.relative_to(finished_run / "model").as_posix() for path in (finished_run / "model").rglob("*.*")}
    assert names == {"model_index.json", "scheduler/scheduler_config.json", "unet/config.json", WEIGHTS}


def test_what_was_saved_and_loaded_has_the_same_fingerprint(saved_by_diffusers: Path, tmp_path: Path) -> None:
    model = load_model(str(saved_by_diffusers))
    save_model(model, tmp_path / "again")
    assert load_model(str(tmp_path / "again")).fingerprint == model.fingerprint


def test_the_old_layout_with_everything_at_the_top_opens(saved_by_diffusers: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for part in ("unet", "scheduler"):
        for file in (saved_by_diffusers / part).iterdir():
            shutil.copy(file, flat)
    assert load_model(str(flat)).fingerprint == load_model(str(saved_by_diffusers)).fingerprint


def test_a_hub_id_opens_what_the_hub_has(
    saved_by_diffusers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download is what lies in the hub's cache; the way from the id to the model is the real one."""
    cache, commit = tmp_path / "hub" / "models--someone--digits", "0" * 40
    shutil.copytree(saved_by_diffusers, cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert load_model("someone/digits").fingerprint == load_model(str(saved_by_diffusers)).fingerprint
    with pytest.raises(UsageError, match=r"no model at 'someone/else': give a diffusers folder .* or a hub id"):
        load_model("someone/else")


def change_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("file", "changes", "says"),
    [
        (
            "unet/config.json",
            {"_class_name": "UNet2DConditionModel"},
            "its network is a UNet2DConditionModel, not a UNet2DModel",
        ),
        ("unet/config.json", {"num_class_embeds": 10}, "its weights lack class_embedding"),
        ("unet/config.json", {"sample_size": None}, "does not give the sample_size"),
        ("unet/config.json", {"block_out_channels": [8, 16]}, "cannot load the model .*weight"),
        ("unet/config.json", {"layers_per_block": 2}, "its weights lack down_blocks.0.resnets.1"),
        ("unet/config.json", {"block_out_channels": "wide"}, "cannot load the model"),
        ("scheduler/scheduler_config.json", {"prediction_type": "score"}, "predicts 'score': only epsilon, v_pre"),
        ("scheduler/scheduler_config.json", {"beta_schedule": "quadratic"}, "cannot load the model .*quadratic"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(
    saved_by_diffusers: Path, file: str, changes: dict[str, object], says: str
) -> None:
    change_json(saved_by_diffusers / file, **changes)
    with pytest.raises(UsageError, match=says):
        load_model(str(saved_by_diffusers))


def test_a_missing_tensor_is_not_replaced_by_random_numbers(saved_by_diffusers: Path) -> None:
    weights = load_file(saved_by_diffusers / WEIGHTS)
    del weights["conv_out.bias"]
    save_file(weights, saved_by_diffusers / WEIGHTS, {"format": "pt"})
    with pytest.raises(UsageError, match="its weights lack conv_out"):
        load_model(str(saved_by_diffusers))


# the algebra


class Constant(nn.Module):
    """A network that always gives the same answer."""

    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self.answer = nn.Parameter(answer)

    def forward(self, noisy: Tensor, timesteps: Tensor) -> Tensor:
        return self.answer.expand_as(noisy)


def constant_model(answer: Tensor, prediction_type: str, beta_schedule: str = "linear") -> DiffusionModel:
    schedule = DDPMScheduler(beta_schedule=beta_schedule, prediction_type=prediction_type)
    return DiffusionModel(Constant(answer), schedule, (1, 4, 4))


@pytest.mark.parametrize("beta_schedule", ["linear", "squaredcos_cap_v2"])
def test_schedules_are_those_of_the_papers(beta_schedule: str) -> None:
    model = constant_model(torch.zeros(1), "epsilon", beta_schedule)
    if beta_schedule == "linear":
        betas = np.linspace(1e-4, 0.02, 1000)
        expected = np.cumprod(1 - betas)
    else:
        progress = np.arange(1001) / 1000
        cosine = np.cos((progress + 0.008) / 1.008 * np.pi / 2) ** 2
        expected = np.cumprod(1 - np.minimum(1 - cosine[1:] / cosine[:-1], 0.999))
    timesteps = torch.arange(1000)
    signal, sigma = model.process.signal_and_noise(timesteps)
    np.testing.assert_allclose(signal.flatten().square(), expected, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(signal.square() + sigma.square(), torch.ones(1000, 1, 1, 1))


@given(seed=st.integers(0, 1000), timestep=st.integers(0, 999))
@settings(max_examples=25, deadline=None)
@torch.no_grad()
def test_a_perfect_network_gives_the_true_noise_whatever_it_predicts(seed: int, timestep: int) -> None:
    clean, noise = torch.randn(2, 1, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    timesteps = torch.tensor([timestep])
    for prediction_type in ("epsilon", "v_prediction"):
        schedule = constant_model(torch.zeros(1), prediction_type)
        perfect = constant_model(schedule.process.training_target(clean, noise, timesteps), prediction_type)
        noisy = perfect.process.add_noise(clean, noise, timesteps)
        torch.testing.assert_close(perfect.predict_target(noisy, timesteps), noise, rtol=0, atol=1e-5)


@torch.no_grad()
def test_the_target_of_v_is_that_of_diffusers_and_its_noise_the_closed_form() -> None:
    model = constant_model(torch.full((1, 4, 4), 0.3), "v_prediction")
    clean, noise = torch.randn(2, 3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    timesteps = torch.tensor([0, 500, 999])
    torch.testing.assert_close(
        model.process.training_target(clean, noise, timesteps), model.scheduler.get_velocity(clean, noise, timesteps)
    )
    noisy = model.process.add_noise(clean, noise, timesteps)
    torch.testing.assert_close(noisy, model.scheduler.add_noise(clean, noise, timesteps))
    alphas = model.scheduler.alphas_cumprod[timesteps].view(-1, 1, 1, 1)
    closed_form = alphas.sqrt() * 0.3 + (1 - alphas).sqrt() * noisy
    torch.testing.assert_close(model.predict_target(noisy, timesteps), closed_form)


def test_elbo_weights_are_the_papers() -> None:
    model = constant_model(torch.zeros(1), "epsilon")
    betas = np.linspace(1e-4, 0.02, 1000)
    expected = betas**2 / (2 * betas * (1 - betas) * (1 - np.cumprod(1 - betas)))
    np.testing.assert_allclose(model.process.elbo_weights(torch.arange(1000)), expected, rtol=1e-3)


# parameters, fingerprints, shapes


def test_a_pattern_selects_parameters_by_name(saved_by_diffusers: Path) -> None:
    model = load_model(str(saved_by_diffusers))
    everything = model.parameters()
    assert sum(value.numel() for value in everything.values()) == sum(p.numel() for p in model.network.parameters())
    assert set(model.parameters("conv_out")) == {"conv_out.weight", "conv_out.bias"}
    assert set(model.parameters(r"^up_blocks|conv_out")) == {
        name for name in everything if name.startswith(("up_blocks", "conv_out"))
    }
    with pytest.raises(UsageError, match=r"no parameter's name matches 'attention9': the model has conv_in, conv_norm"):
        model.parameters("attention9")
    with pytest.raises(UsageError, match=r"'\(' is not a regular expression"):
        model.parameters("(")


def test_a_fingerprint_changes_with_any_weight_and_with_the_schedule(saved_by_diffusers: Path) -> None:
    def fingerprint() -> str:
        return load_model(str(saved_by_diffusers)).fingerprint

    before = fingerprint()
    assert fingerprint() == before
    change_json(saved_by_diffusers / "scheduler/scheduler_config.json", prediction_type="epsilon")
    other_kind = fingerprint()
    weights = load_file(saved_by_diffusers / WEIGHTS)
    weights["conv_out.bias"] += 1e-3
    save_file(weights, saved_by_diffusers / WEIGHTS, {"format": "pt"})
    assert len({before, other_kind, fingerprint()}) == 3


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        (
            (1, 32, 32),
            "digits holds images of 32×32 pixels with 1 channel, but .* 8×8 pixels with 1 channel: give --size 8",
        ),
        ((3, 8, 8), "with 3 channels, but .*: give grey images"),
        ((3, 9, 7), "images of 7×9 pixels .*: give --size 8 .* and grey images"),
    ],
)
def test_images_of_another_shape_are_refused_with_what_would_fit(
    saved_by_diffusers: Path, shape: tuple[int, int, int], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        load_model(str(saved_by_diffusers)).check_fits(shape, "digits")


# wrapping


class Plain(nn.Module):
    """Anything that maps (images, timesteps) to a noise prediction."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 1, 1)

    def forward(self, noisy: Tensor, timesteps: Tensor) -> Tensor:
        answer: Tensor = self.last(torch.tanh(self.norm(self.first(noisy)) + timesteps.view(-1, 1, 1, 1) / 1000))
        return answer


def test_any_module_can_be_wrapped_and_attributed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = dtrak.DiffusionModel(Plain(), DDPMScheduler(), (1, 8, 8))
    images = dtrak.load_images("digits:train").select(range(20))
    scores = dtrak.attribute(model, images, images.select([3, 7]), projection="identity", timesteps=2, damping=1e-4)
    assert scores.values.shape == (2, 20)
    # An image that was trained on is its own strongest proponent when hardly anything is damped.
    assert scores.values.argmax(1).tolist() == [3, 7]
