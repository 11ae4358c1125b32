"""Pipelines that are not understood are refused by their name, before their parts are put together wrongly."""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
import transformers
from diffusers import (
    DDIMPipeline,
    DDIMScheduler,
    DDPMPipeline,
    DDPMScheduler,
    KarrasVeScheduler,
    LDMPipeline,
    UNet2DModel,
    VQModel,
)
from safetensors.torch import load_file

from commands import dtrak
from dtrak.errors import UsageError
from dtrak.models import DiffusionModel, load_model
from dtrak.models.families import FAMILIES
from dtrak.models.families.pipeline_family import LoRA, PipelineSettings
from hub import hub_of
from pictures_on_disk import noise, refused, save_npz

SIDE = 8


def unet(**changes: Any) -> UNet2DModel:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "sample_size": SIDE,
        "in_channels": 3,
        "out_channels": 3,
        "down_block_types": ("DownBlock2D",),
        "up_block_types": ("UpBlock2D",),
        "block_out_channels": (8,),
        "norm_num_groups": 4,
        "layers_per_block": 1,
    }
    return UNet2DModel(**settings | changes)


@pytest.fixture
def latent(tmp_path: Path) -> Path:
    """An unconditional latent diffusion model, whose latents could be taken for small images in colour."""
    vqvae = VQModel(block_out_channels=(8,), norm_num_groups=4, latent_channels=3, num_vq_embeddings=4)
    LDMPipeline(vqvae, unet(), DDIMScheduler()).save_pretrained(tmp_path / "latent")
    return tmp_path / "latent"


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_latent_model_is_not_scored_on_pixels(latent: Path, tmp_path: Path) -> None:
    """Without a file that names its pipeline, nobody knows what its parts are for."""
    save_npz(tmp_path / "images.npz", images=noise(4, SIDE, SIDE, 3))
    words = ["attribute", "--model", latent, "--train", "images.npz", "--queries", "images.npz", "--out", "s.npz"]
    (latent / "model_index.json").unlink()
    outcome = dtrak(*words, cwd=tmp_path)
    assert outcome.code == 2
    assert f"{latent}: it has vqvae/ beside its U-Net" in outcome.error
    assert not (tmp_path / "s.npz").exists()


@pytest.mark.parametrize("kind", ["KarrasVePipeline", "CogView4Pipeline", None, ["x", "DDPM"]])
def test_other_classes_are_named(kind: Any, tmp_path: Path) -> None:
    DDPMPipeline(unet(), DDPMScheduler()).save_pretrained(tmp_path / "model")
    change(tmp_path / "model" / "model_index.json", _class_name=kind)
    refused(lambda: load_model(str(tmp_path / "model")), f"is a {kind}: ", "dtrak.DiffusionModel")
    (tmp_path / "model" / "model_index.json").write_text("[1]")
    refused(lambda: load_model(str(tmp_path / "model")), "model_index.json is not a JSON object")


def test_a_pipeline_without_its_parts(tmp_path: Path) -> None:
    DDPMPipeline(unet(), DDPMScheduler()).save_pretrained(tmp_path / "model")
    change(tmp_path / "model" / "model_index.json", _class_name="FluxPipeline")
    refused(lambda: load_model(str(tmp_path / "model")), "it has no transformer/config.json")


def test_relatives_of_stable_diffusion_are_named(base: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(base, tmp_path / "model"))
    change(folder / "model_index.json", _class_name="StableDiffusionInpaintPipeline")
    refused(lambda: load_model(str(folder)), "is a StableDiffusionInpaintPipeline: ")
    (folder / "model_index.json").unlink()
    assert load_model(str(folder)).prompts is not None
    change(folder / "unet" / "config.json", class_embed_type="timestep")
    refused(lambda: load_model(str(folder)), "its U-Net takes more than prompts", "class_embed_type")


def test_other_kinds_on_the_hub_are_refused_before_their_weights_are_fetched(
    latent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(latent, tmp_path / "hub" / "someone" / "latent")
    change(tmp_path / "hub" / "someone" / "latent" / "model_index.json", _class_name="KarrasVePipeline")
    with hub_of(tmp_path / "hub", tmp_path / "cache", monkeypatch) as files:
        refused(lambda: load_model("someone/latent"), "someone/latent is a KarrasVePipeline")
        assert all(file.endswith((".json", ".txt")) for file in files)


def test_ddim_is_read_as_ddpm(tmp_path: Path) -> None:
    betas = {"beta_schedule": "scaled_linear", "beta_end": 0.01}
    DDIMPipeline(unet(), DDIMScheduler(**betas)).save_pretrained(tmp_path / "ddim")
    DDPMPipeline(unet(), DDPMScheduler(**betas)).save_pretrained(tmp_path / "ddpm")
    ddim, ddpm = (load_model(str(tmp_path / name)) for name in ("ddim", "ddpm"))
    assert ddim.fingerprint == ddpm.fingerprint


def test_a_schedule_without_betas_is_not_replaced_by_the_usual_one(tmp_path: Path) -> None:
    unet().save_pretrained(tmp_path / "model" / "unet")
    KarrasVeScheduler().save_pretrained(tmp_path / "model" / "scheduler")
    refused(lambda: load_model(str(tmp_path / "model")), "its schedule is a KarrasVeScheduler", "DiffusionModel")
    refused(lambda: DiffusionModel(unet(), KarrasVeScheduler(), (3, 8, 8)), "has a KarrasVeScheduler: only schedulers")


def test_weights_of_a_larger_network_are_not_cut_to_fit(tmp_path: Path) -> None:
    DDPMPipeline(unet(layers_per_block=2), DDPMScheduler()).save_pretrained(tmp_path / "model")
    assert any("resnets.1" in name for name in load_file(tmp_path / "model/unet/diffusion_pytorch_model.safetensors"))
    change(tmp_path / "model" / "unet" / "config.json", layers_per_block=1)
    refused(lambda: load_model(str(tmp_path / "model")), "its weights have down_blocks.0.", "config.json has no place")


# pickles that run code


class Bomb:
    """What runs when it is unpickled by whoever trusts it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("broken", [False, True])
def test_no_code_of_a_text_encoder_or_adapter_is_run(base: Path, broken: bool, tmp_path: Path) -> None:
    from peft import LoraConfig

    made = tmp_path / "made"
    folder = Path(shutil.copytree(base, tmp_path / "model"))
    (folder / "text_encoder" / "model.safetensors").unlink()
    of_peft, of_diffusers = tmp_path / "peft", tmp_path / "diffusers"
    LoraConfig(r=2, target_modules=["to_q"]).save_pretrained(of_peft)
    of_diffusers.mkdir()
    pickles = [
        folder / "text_encoder" / "pytorch_model.bin",
        of_peft / "adapter_model.bin",
        of_diffusers / "pytorch_lora_weights.bin",
    ]
    for path in pickles:
        torch.save({"lora.up.weight": Bomb(made)}, path)
        if broken:
            path.write_bytes(path.read_bytes()[:100])
    refused(lambda: load_model(str(folder)), f"cannot load the model '{folder}'")
    for lora in (of_peft, of_diffusers, pickles[2]):
        refused(lambda lora=lora: load_model(str(base), lora=str(lora)), repr(str(lora)))  # type: ignore[misc]
    assert not made.exists()
    if not broken:
        torch.load(pickles[0], weights_only=False)
        assert made.exists(), "the bomb is real"


def test_a_pickled_text_encoder_is_one_line_at_the_command_line(base: Path, tmp_path: Path) -> None:
    folder, made = Path(shutil.copytree(base, tmp_path / "model")), tmp_path / "made"
    (folder / "text_encoder" / "model.safetensors").unlink()
    torch.save({"x": Bomb(made)}, folder / "text_encoder" / "pytorch_model.bin")
    save_npz(tmp_path / "images.npz", images=noise(4, 16, 16, 3))
    outcome = dtrak(
        "attribute",
        "--model",
        folder,
        "--train",
        "images.npz",
        "--queries",
        "images.npz",
        "--out",
        "s.npz",
        cwd=tmp_path,
    )
    assert outcome.code == 2
    assert f"cannot load the model '{folder}'" in outcome.error
    assert not made.exists()


# folders of strangers


@pytest.fixture
def bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a file appears if any pipeline or automatic class is opened, as if they ran code of the folder."""
    path = tmp_path / "exploded"

    def explode(*_: Any, **__: Any) -> None:
        path.touch()

    for kind in (DDPMPipeline, diffusers.AutoPipelineForText2Image, transformers.AutoModel):
        monkeypatch.setattr(kind, "from_pretrained", explode)
    monkeypatch.setattr(diffusers.DiffusionPipeline, "from_pretrained", explode)
    return path


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ("vae", ["diffusers", "DiffusionPipeline"]),
        ("text_encoder", ["diffusers", "DDPMPipeline"]),
        ("text_encoder", ["transformers", "AutoModel"]),
        ("unet", ["diffusers", "AutoPipelineForText2Image"]),
        ("unet", ["diffusers", "ConfigMixin"]),
        ("unet", ["diffusers", "UNet2DModel"]),  # of another family
        ("unet", ["os", "UNet2DConditionModel2"]),
        ("more", ["diffusers", "DiffusionPipeline"]),
        ("more", ["pipeline", "Mine"]),
    ],
)
def test_only_classes_that_the_family_knows_are_opened(
    base: Path, part: str, kind: list[str], bomb: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(base, tmp_path / "model"))
    if part == "more":
        shutil.copytree(folder / "vae", folder / "more")
    change(folder / "model_index.json", **{part: kind})
    refused(lambda: load_model(str(folder)), f"{folder}: its {part} is a {kind[1]} of {kind[0]}, which is no part of")
    settings = PipelineSettings(kind="stable-diffusion", base=str(folder), lora=LoRA(rank=1, alpha=1), prompt="x")
    family = FAMILIES["stable-diffusion"]
    refused(lambda: family.lay_out(settings, (3, 16, 16), "tiny"), f"its {part} is a {kind[1]}")
    assert not bomb.exists()


@pytest.mark.parametrize(
    "kind", ["DiffusionPipeline", "AutoPipelineForText2Image", "ConfigMixin", "logging", "Nothing"]
)
def test_only_schedulers_are_opened_as_schedulers(base: Path, kind: str, bomb: Path, tmp_path: Path) -> None:
    """Whatever they say about their noise."""
    latent, pixels = Path(shutil.copytree(base, tmp_path / "latent")), tmp_path / "pixels"
    unet().save_pretrained(pixels / "unet")
    shutil.copytree(base / "scheduler", pixels / "scheduler")
    for folder in (latent, pixels):
        for more in ({"use_flow_sigmas": True}, {"use_flow_sigmas": False, "beta_schedule": "linear"}):
            change(folder / "scheduler" / "scheduler_config.json", _class_name=kind, **more)
            if folder == pixels and not more["use_flow_sigmas"]:
                assert type(load_model(str(folder)).scheduler) is DDPMScheduler  # whose β are all that counts
            else:
                refused(lambda folder=folder: load_model(str(folder)), f"is a {kind}, which is no scheduler")  # type: ignore[misc]
    assert not bomb.exists()


def test_no_code_beside_a_tokenizer_is_run(base: Path, tmp_path: Path) -> None:
    folder, made = Path(shutil.copytree(base, tmp_path / "model")), tmp_path / "made"
    (folder / "tokenizer" / "mine.py").write_text(f"import os\nos.mkdir({str(made)!r})\nclass Mine: ...\n")
    change(folder / "tokenizer" / "tokenizer_config.json", auto_map={"AutoTokenizer": ["mine.Mine", None]})
    for kind in (["transformers", "CLIPTokenizer"], ["transformers", "AutoModel"], ["mine", "Mine"]):
        change(folder / "model_index.json", tokenizer=kind)
        with suppress(UsageError):
            load_model(str(folder))
    assert not made.exists()


@pytest.mark.parametrize(
    ("file", "changes", "said"),
    [
        ("unet/config.json", {"layers_per_block": 10_000}, "layers_per_block is 10000: no network is so deep"),
        ("unet/config.json", {"layers_per_block": [1, 10**6]}, "layers_per_block is [1, 1000000]: no network"),
        ("unet/config.json", {"down_block_types": ["DownBlock2D"] * 10_000}, "no network is so deep"),
        ("vae/config.json", {"layers_per_block": 10_000}, "vae/config.json: layers_per_block is 10000"),
        ("text_encoder/config.json", {"num_hidden_layers": 10**9}, "text_encoder/config.json: num_hidden_layers"),
        (
            "unet/config.json",
            {"sample_size": [8]},
            "as one or two whole numbers (it says [8])",
        ),
        ("unet/config.json", {"sample_size": "8"}, "as one or two whole numbers (it says '8')"),
        ("unet/config.json", {"sample_size": [8, "8"]}, "does not give the sample_size"),
        ("unet/config.json", {"sample_size": 10**9}, "does not give the sample_size"),
        ("unet/config.json", {"sample_size": {"a": 1}}, "does not give the sample_size"),
        ("scheduler/scheduler_config.json", {"num_train_timesteps": 10**12}, "has 1000000000000 timesteps"),
        ("scheduler/scheduler_config.json", {"num_train_timesteps": "x"}, "has 'x' timesteps"),
    ],
)
@pytest.mark.parametrize("latent", [True, False])
def test_settings_that_no_network_has(
    base: Path, file: str, changes: dict[str, Any], said: str, latent: bool, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(base, tmp_path / "model"))
    if not latent:
        if file.startswith(("vae", "text")):
            return
        shutil.rmtree(folder)
        DDPMPipeline(unet(), DDPMScheduler()).save_pretrained(folder)
    change(folder / file, **changes)
    refused(lambda: load_model(str(folder)), said)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' * 100_000, "1" * 5000, "{" + " " * (1 << 25) + "}", ""])
def test_settings_that_are_no_json(text: str, tmp_path: Path) -> None:
    DDPMPipeline(unet(), DDPMScheduler()).save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "unet" / "config.json").write_text(text)
    refused(lambda: load_model(str(tmp_path / "model")), "unet/config.json is not a JSON object")


# names


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", f"someone/{'x' * 5000}", "some\0one/x"])
def test_names_that_no_file_can_have(base: Path, name: str) -> None:
    refused(lambda: load_model(name), "no model at")
    refused(lambda: load_model(str(base), lora=name), "no LoRA at")


def test_a_pipe_is_no_model_and_no_lora(base: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    refused(lambda: load_model(str(tmp_path / "pipe.safetensors")), "is a file")
    refused(lambda: load_model(str(base), lora=str(tmp_path / "pipe.safetensors")), "no LoRA at")
    folder = Path(shutil.copytree(base, tmp_path / "model"))
    (folder / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    os.mkfifo(folder / "vae" / "diffusion_pytorch_model.safetensors")
    refused(lambda: load_model(str(folder)), "vae/diffusion_pytorch_model.safetensors is a pipe or a device")
    (tmp_path / "lora").mkdir()
    os.mkfifo(tmp_path / "lora" / "pytorch_lora_weights.safetensors")
    refused(lambda: load_model(str(base), lora=str(tmp_path / "lora")), "is a pipe or a device")
