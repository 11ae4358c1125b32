"""LoRAs of every family: trained by dtrak and opened by diffusers or peft, in kohya's format, and in half precision."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor

from dtrak.errors import UsageError
from dtrak.features.model_inputs import model_inputs
from dtrak.features.spec import Spec
from dtrak.gradients.backward import can_share_a_pass
from dtrak.gradients.factored import Factored
from dtrak.images.images import Images
from dtrak.models import load_model, new_model, save_model
from dtrak.models.families import FAMILIES
from dtrak.models.pipelines import PEFT_CONFIG
from dtrak.noise import gaussian
from dtrak.runs.recipes import Training
from dtrak.runs.training import Trainer
from featurized import featurize
from tiny_pipelines import MAKERS, save_tiny
from training_losses import latents_by_diffusers, training_loss

USUAL = ("stable-diffusion-xl", "stable-diffusion-3", "flux", "pixart", "dit", "latent-diffusion")
KINDS = [pytest.param(kind, marks=[] if kind in USUAL else [pytest.mark.slow], id=kind) for kind in MAKERS]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    home, made = tmp_path_factory.mktemp("pipelines"), {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = save_tiny(kind, home / kind)
        return made[kind]

    return folder


def settings_of(kind: str, base: Path, **more: Any) -> Any:
    prompt = {} if kind in ("dit", "latent-diffusion") else {"prompt": "{caption}"}
    content = {"kind": kind, "base": str(base), "lora": {"rank": 2, "alpha": 4}, **prompt, **more}
    return FAMILIES[kind].settings.model_validate(content)


def told(images: Images) -> Images:
    return replace(images, columns={**images.columns, "label": np.arange(len(images)) % 3})


def trained(kind: str, base: Path, images: Images, **more: Any) -> Any:
    torch.manual_seed(0)
    model = new_model(settings_of(kind, base, **more), images.shape, "tiny")
    trainer = Trainer(model, images, Training(epochs=1, batch_size=3, learning_rate=1e-2))
    for _ in range(2):
        trainer.take_step()
    return trainer.model


@pytest.mark.parametrize("kind", KINDS)
def test_a_lora_is_trained_saved_and_opened(
    kind: str, folders: Callable[[str], Path], paintings: Images, tmp_path: Path
) -> None:
    """Its folder names its pipeline; diffusers loads it, or peft where diffusers has no LoRAs of this kind."""
    images, base = told(paintings.first(6)), folders(kind)
    model = trained(kind, base, images)
    save_model(model, tmp_path / "lora")
    found = load_model(str(tmp_path / "lora")).fitted_to(images.shape)
    inputs = model_inputs(found, images)
    arguments = (gaussian((2, *found.shape), 0), torch.tensor([10, 500]), inputs.condition([0, 1]))
    with torch.no_grad():
        expected = model.predict(*arguments)
        torch.testing.assert_close(found.predict(*arguments), expected, rtol=0, atol=1e-5)
        plain = load_model(str(base)).fitted_to(images.shape)
        assert not torch.allclose(plain.predict(*arguments), expected, atol=1e-5)
        pipeline = DiffusionPipeline.from_pretrained(base)
        part = "unet" if hasattr(pipeline, "unet") else "transformer"
        if (tmp_path / "lora" / PEFT_CONFIG).exists():
            network = PeftModel.from_pretrained(getattr(pipeline, part), str(tmp_path / "lora"))
        else:
            pipeline.load_lora_weights(str(tmp_path / "lora"))
            network = getattr(pipeline, part)
        torch.testing.assert_close(
            replace(found, network=network.eval()).predict(*arguments), expected, rtol=0, atol=1e-5
        )
    difference = FAMILIES[kind].difference(found, settings_of(kind, base), images.shape, "tiny")
    assert difference is None


SAVE = """
import sys, torch
from pathlib import Path
from test_family_loras import settings_of
from dtrak.models import new_model, save_model
for kind, folder in (("dit", sys.argv[1]), ("pixart", sys.argv[2]), ("flux", sys.argv[3])):
    torch.manual_seed(0)
    save_model(new_model(settings_of(kind, Path(folder)), (3, 16, 16), "tiny"), Path(sys.argv[4], kind))
"""


def test_a_lora_has_the_same_bytes_in_every_process(folders: Callable[[str], Path], tmp_path: Path) -> None:
    """Also where sets have another order."""
    bases, found = [str(folders(kind)) for kind in ("dit", "pixart", "flux")], []
    for seed in "12":
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", SAVE, *bases, str(tmp_path / seed)]
        subprocess.run(command, check=True, env=environment, capture_output=True)
        files = sorted(path for path in (tmp_path / seed).rglob("*") if path.is_file())
        found.append({str(path.relative_to(tmp_path / seed)): path.read_bytes() for path in files})
    assert len(found[0]) > 6
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.id not in ("stable-diffusion-xl", "latent-diffusion")])
def test_factored_features_of_transformers(
    kind: str, folders: Callable[[str], Path], paintings: Images, tmp_path: Path
) -> None:
    """Hooks on layers give B ∇W Aᵀ of every copy as autograd's gradient of diffusers' loss does."""
    images, names = told(paintings.first(2)), ("0", "1")
    model = load_model(str(folders(kind))).fitted_to(images.shape)
    inputs = model_inputs(model, images)
    parameters = model.parameters()
    assert can_share_a_pass(model, set(parameters), inputs.condition([0]))
    settings = Spec(copies="apart", timesteps="100,700", projection="factored", projection_dim=3000)
    found = featurize(model, inputs, ["simple"], settings, tmp_path, "x")["simple"].numpy()
    projection = Factored(3000, {name: tuple(value.shape) for name, value in parameters.items()}, 0)
    pipeline = DiffusionPipeline.from_pretrained(folders(kind))
    latents = latents_by_diffusers(pipeline, images.tensor(range(2)))
    network = pipeline.transformer.eval()
    if kind == "dit":
        names = ("circle", "stripe")  # what the classes 0 and 1 are called in the test of the loss
    for row in range(2):
        for copy, t in enumerate((100, 700)):
            noise = gaussian(tuple(latents.shape[1:]), 0, t, 0)[None]
            text = names[row] if kind == "dit" else str(images.columns["caption"][row])
            loss = training_loss(kind, pipeline, latents[row : row + 1], noise, t, text)
            gradients = torch.autograd.grad(loss, list(network.parameters()), materialize_grads=True)
            expected = torch.zeros(1, projection.dim)
            for (name, _), gradient in zip(network.named_parameters(), gradients, strict=True):
                projection.add(expected, name, gradient.reshape(1, -1))
            own = torch.from_numpy(found[row].reshape(2, -1)[copy])
            assert float((own - expected[0]).norm() / expected.norm()) < 1e-4


def kohya_of_flux(layers: dict[str, Tensor]) -> dict[str, Tensor]:
    """The output projections of FLUX's attention under the names of kohya's scripts."""
    weights = {}
    for name, value in layers.items():
        part = "down" if "lora_A" in name else "up"
        key = "lora_unet_double_blocks_0_img_attn_proj"
        weights |= {f"{key}.lora_{part}.weight": value.contiguous(), f"{key}.alpha": torch.tensor(4.0)}
    return weights


def kohya_of_xl(layers: dict[str, Tensor]) -> dict[str, Tensor]:
    weights = {}
    for name, value in layers.items():
        layer, part = (
            name.removeprefix("unet.")
            .removesuffix(".weight")
            .split(".lora_" if ".lora_A" in name or ".lora_B" in name else ".lora.")
        )
        key = "lora_unet_" + layer.replace(".", "_")
        part = {"A": "down", "B": "up"}.get(part, part)
        weights |= {f"{key}.lora_{part}.weight": value.contiguous(), f"{key}.alpha": torch.tensor(4.0)}
    return weights


@pytest.mark.parametrize("kind", ["stable-diffusion-xl", "flux"])
def test_loras_of_kohyas_scripts(kind: str, folders: Callable[[str], Path], paintings: Images, tmp_path: Path) -> None:
    images, base = told(paintings.first(3)), folders(kind)
    targets = ["transformer_blocks.0.attn.to_out.0"] if kind == "flux" else ["to_q", "to_v"]
    lora = {"rank": 2, "alpha": 4, "targets": targets}
    model = trained(kind, base, images, lora=lora)
    save_model(model, tmp_path / "lora")
    layers = load_file(tmp_path / "lora" / "pytorch_lora_weights.safetensors")
    save_file(kohya_of_flux(layers) if kind == "flux" else kohya_of_xl(layers), tmp_path / "kohya.safetensors")
    found = load_model(str(base), lora=str(tmp_path / "kohya.safetensors")).fitted_to(images.shape)
    arguments = (gaussian((2, *found.shape), 0), torch.tensor([10, 500]), model_inputs(found, images).condition([0, 1]))
    with torch.no_grad():
        torch.testing.assert_close(found.predict(*arguments), model.predict(*arguments), rtol=0, atol=1e-5)


def test_a_lora_of_another_format_is_refused(folders: Callable[[str], Path], tmp_path: Path) -> None:
    save_file({"transformer.x.lora_A.weight": torch.zeros(2, 2)}, tmp_path / "one.safetensors")
    with pytest.raises(UsageError, match="not in peft's format"):
        load_model(str(folders("pixart")), lora=str(tmp_path / "one.safetensors"))
    with pytest.raises(UsageError, match="takes no prompts"):
        load_model(str(folders("dit")), prompt="a {label}")


def test_half_precision(folders: Callable[[str], Path], paintings: Images, tmp_path: Path) -> None:
    """Frozen weights in bfloat16, a LoRA in float32: features are close to those in float32."""
    images, base = told(paintings.first(3)), folders("stable-diffusion-3")
    save_model(trained("stable-diffusion-3", base, images), tmp_path / "lora")
    whole, half = (
        load_model(str(base), lora=str(tmp_path / "lora"), prompt="{caption}", precision=one).fitted_to(images.shape)
        for one in ("float32", "bfloat16")
    )
    assert half.precision == torch.bfloat16
    assert all(value.dtype == torch.float32 for value in half.parameters().values())
    settings = Spec(timesteps="100,700", projection="identity")
    first, second = (
        featurize(one, images, ["simple"], settings, tmp_path / str(number), "x")["simple"].numpy()
        for number, one in enumerate((whole, half))
    )
    cosine = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    assert (cosine > 0.98).all()
    model = trained("stable-diffusion-3", base, images, precision="bfloat16")
    assert model.precision == torch.bfloat16
    with pytest.raises(UsageError, match="precision"):
        load_model(str(base), precision="int3")


@pytest.mark.parametrize("kind", ["stable-diffusion-xl", pytest.param("flux", marks=pytest.mark.slow)])
def test_activations_are_computed_again_where_memory_is_short(
    kind: str, folders: Callable[[str], Path], paintings: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The features are the same."""
    images, base = told(paintings.first(2)), folders(kind)
    save_model(trained(kind, base, images), tmp_path / "lora")
    found = []
    for short in (False, True):
        model = load_model(str(tmp_path / "lora")).fitted_to(images.shape)
        if short:
            monkeypatch.setattr("dtrak.gradients.featurizer.total_memory", lambda device: 1000)
        for copies in ("averaged", "apart"):
            settings = Spec(copies=copies, timesteps="100,700", projection="identity")
            stores = featurize(model, images, ["simple"], settings, tmp_path / f"{short}", "x")
            found.append(stores["simple"].numpy().reshape(2, -1))
        assert any(getattr(one, "gradient_checkpointing", False) for one in model.network.modules()) == short
    np.testing.assert_allclose(found[2], found[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found[3], found[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_sizes_of_a_pipeline_come_from_its_settings(
    kind: str, folders: Callable[[str], Path], paintings: Images, tmp_path: Path
) -> None:
    """Without any weights: as many parameters as the pipeline has, and half the bytes in half precision."""
    base, images = folders(kind), told(paintings.first(3))
    configs = tmp_path / "configs"
    for file in [*base.glob("*.json"), *base.glob("*/*.json")]:
        target = configs / file.relative_to(base)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.read_text())
    family = FAMILIES[kind]
    layout = family.lay_out(settings_of(kind, configs), images.shape, "tiny")
    model = new_model(settings_of(kind, base), images.shape, "tiny")
    pipeline = DiffusionPipeline.from_pretrained(base)
    whole = sum(
        value.numel()
        for part in pipeline.components.values()
        if hasattr(part, "parameters")
        for value in part.parameters()
    )
    assert layout.trained == sum(value.numel() for value in model.parameters().values())
    assert layout.frozen == whole
    half = family.lay_out(settings_of(kind, configs, precision="bfloat16"), images.shape, "tiny")
    assert half.frozen_bytes < layout.frozen_bytes
    assert layout.activations > 0
    family.check_buildable(settings_of(kind, configs), images, "tiny")
    assert json.loads((configs / "model_index.json").read_text())["_class_name"] in family.pipelines  # type: ignore[attr-defined]
