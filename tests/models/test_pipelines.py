"""Pipelines and LoRAs come from folders and from the hub, in whichever form their weights lie there."""

import shutil
from pathlib import Path

import pytest
import torch
from diffusers import DDPMPipeline, DDPMScheduler, StableDiffusionPipeline, UNet2DModel
from huggingface_hub import snapshot_download
from safetensors.torch import load_file

from dtrak.errors import UsageError
from dtrak.models import load_model, new_model, save_model
from dtrak.models.families.pipeline_family import LoRA, PipelineSettings
from hub import hub_of
from tiny_stable_diffusion import SIDE

WEIGHT_FORMATS = {
    "safetensors": {"safe_serialization": True},
    "bin": {"safe_serialization": False},
    "fp16.safetensors": {"safe_serialization": True, "variant": "fp16"},
    "fp16.bin": {"safe_serialization": False, "variant": "fp16"},
}


def saved_as(base: Path, folder: Path, *forms: str) -> Path:
    """The pipeline, saved by diffusers in all of these forms."""
    for form in forms:
        dtype = torch.float16 if form.startswith("fp16") else torch.float32
        pipeline = StableDiffusionPipeline.from_pretrained(base, dtype=dtype)
        pipeline.save_pretrained(folder, **WEIGHT_FORMATS[form])
        if form.endswith("bin"):  # transformers no longer writes any
            saved = folder / "text_encoder" / f"model.{form.replace('bin', 'safetensors')}"
            torch.save(pipeline.text_encoder.state_dict(), folder / "text_encoder" / f"pytorch_model.{form}")
            saved.unlink()
    return folder


def save_lora(folder: Path, base: Path) -> Path:
    """One whose weights are not zero."""
    recipe = PipelineSettings(kind="stable-diffusion", base=str(base), lora=LoRA(rank=2, alpha=2), prompt="a disc")
    model = new_model(recipe, (3, SIDE, SIDE), "a new one")
    for value in model.parameters().values():
        torch.nn.init.normal_(value)
    save_model(model, folder)
    return folder


def weights_among(files: list[str]) -> set[str]:
    return {file for file in files if not file.endswith((".json", ".txt"))}


@pytest.mark.parametrize("form", WEIGHT_FORMATS)
def test_weights_in_every_form(base: Path, form: str, tmp_path: Path) -> None:
    expected, found = load_model(str(base)), load_model(str(saved_as(base, tmp_path / "model", form)))
    assert not list((tmp_path / "model" / "unet").glob("diffusion_pytorch_model.safetensors")) or form == "safetensors"
    tolerance = 1e-3 if form.startswith("fp16") else 0.0
    for part, other in (
        (expected.network, found.network),
        (expected.autoencoder.network, found.autoencoder.network),
        (expected.prompts.encoder.pipeline.text_encoder, found.prompts.encoder.pipeline.text_encoder),
    ):
        for (name, value), same in zip(part.named_parameters(), other.parameters(), strict=True):
            assert same.dtype == torch.float32, name
            torch.testing.assert_close(same, value, rtol=tolerance, atol=tolerance)


def test_a_ddpm_with_pickled_weights(tmp_path: Path) -> None:
    unet = UNet2DModel(
        8, 1, 1, down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",), block_out_channels=(8,),
        norm_num_groups=4, layers_per_block=1,
    )  # fmt: skip
    pipeline = DDPMPipeline(unet, DDPMScheduler())
    pipeline.save_pretrained(tmp_path / "pickled", safe_serialization=False)
    pipeline.save_pretrained(tmp_path / "safe")
    assert load_model(str(tmp_path / "pickled")).fingerprint == load_model(str(tmp_path / "safe")).fingerprint


class Bomb:
    """What runs when it is unpickled by whoever trusts it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.path,)  # type: ignore[return-value]


def test_nothing_in_pickles_is_run(base: Path, tmp_path: Path) -> None:
    folder, touched = saved_as(base, tmp_path / "model", "bin"), tmp_path / "touched"
    weights = folder / "unet" / "diffusion_pytorch_model.bin"
    torch.save({"conv_in.weight": Bomb(touched)}, weights)
    with pytest.raises(UsageError, match=r"cannot load the model .*: it is damaged"):
        load_model(str(folder))
    assert not touched.exists()
    weights.write_bytes(b"")
    with pytest.raises(UsageError, match=r"cannot load the model .*: it is damaged"):
        load_model(str(folder))


@pytest.mark.parametrize(
    ("there", "fetched"),
    [
        (("bin", "safetensors", "fp16.safetensors"), "safetensors"),
        (("bin", "fp16.safetensors"), "bin"),
        (("fp16.bin", "fp16.safetensors"), "fp16.safetensors"),
    ],
)
def test_only_the_best_form_is_fetched_from_the_hub(
    base: Path, there: tuple[str, ...], fetched: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_as(base, tmp_path / "hub" / "someone" / "tiny", *there)
    with hub_of(tmp_path / "hub", tmp_path / "cache", monkeypatch) as files:
        model = load_model("someone/tiny")
        text = f"{'pytorch_model' if fetched == 'bin' else 'model'}.{fetched}"
        assert weights_among(files) == {
            f"unet/diffusion_pytorch_model.{fetched}",
            f"vae/diffusion_pytorch_model.{fetched}",
            f"text_encoder/{text}",
        }
        before = len(files)
        assert load_model("someone/tiny").fingerprint == model.fingerprint
        assert len(files) == before, "what is there is not fetched again"
    if fetched == "safetensors":
        assert model.fingerprint == load_model(str(base)).fingerprint


def test_a_lora_from_the_hub(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lora = save_lora(tmp_path / "lora", base)
    hub = tmp_path / "hub"
    shutil.copytree(lora, hub / "someone" / "lora")
    shutil.copytree(base, hub / "someone" / "tiny")
    (hub / "someone" / "lora" / "dtrak.json").unlink()
    with hub_of(hub, tmp_path / "cache", monkeypatch) as files:
        model = load_model("someone/tiny", lora="someone/lora")
        assert "pytorch_lora_weights.safetensors" in files
        assert model.has_lora
        assert model.base == "someone/tiny"
        with pytest.raises(UsageError, match=r"no LoRA at 'someone/else': .* hub"):
            load_model("someone/tiny", lora="someone/else")
        with pytest.raises(UsageError, match=r"no model at 'someone/else': .* hub"):
            load_model("someone/else")
    for name, value in load_model(str(base), lora=str(lora)).parameters().items():
        assert torch.equal(value, model.parameters()[name])


def test_what_the_cache_has_is_completed(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves that another program has fetched do not stand for the whole, nor does the first of several files."""
    whole = saved_as(base, tmp_path / "hub" / "someone" / "tiny", "safetensors", "fp16.safetensors")
    with hub_of(tmp_path / "hub", tmp_path / "cache", monkeypatch):
        snapshot_download("someone/tiny", allow_patterns=["*.fp16.safetensors"])
        assert load_model("someone/tiny").fingerprint == load_model(str(whole)).fingerprint
    several = tmp_path / "hub" / "someone" / "large"
    pipeline = StableDiffusionPipeline.from_pretrained(base)
    pipeline.save_pretrained(several)
    (several / "unet" / "diffusion_pytorch_model.safetensors").unlink()
    pipeline.unet.save_pretrained(several / "unet", max_shard_size="300KB")
    first, *others = sorted(path.name for path in (several / "unet").glob("*-of-*.safetensors"))
    assert others
    with hub_of(tmp_path / "hub", tmp_path / "cache", monkeypatch):
        snapshot_download("someone/large", allow_patterns=[f"unet/{first}"])
        assert load_model("someone/large").fingerprint == load_model(str(whole)).fingerprint


def test_pipelines_of_other_kinds_are_refused_before_they_are_fetched(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Path(shutil.copytree(base, tmp_path / "hub" / "someone" / "xl"))
    shutil.copytree(other / "text_encoder", other / "text_encoder_2")
    with hub_of(tmp_path / "hub", tmp_path / "cache", monkeypatch) as files:
        with pytest.raises(UsageError, match="someone/xl: its text encoder is not the one CLIP"):
            load_model("someone/xl")
        assert not weights_among(files)


def test_pickled_loras(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As diffusers and peft have saved them before there were safetensors; from a folder, a file and the hub."""
    lora = save_lora(tmp_path / "lora", base)
    expected = load_model(str(base), lora=str(lora)).fingerprint
    weights = load_file(lora / "pytorch_lora_weights.safetensors")
    pickled = tmp_path / "hub" / "someone" / "pickled"
    pickled.mkdir(parents=True)
    torch.save(weights, pickled / "pytorch_lora_weights.bin")
    for place in (pickled, pickled / "pytorch_lora_weights.bin"):
        assert load_model(str(base), lora=str(place)).fingerprint == expected
    with hub_of(tmp_path / "hub", tmp_path / "cache", monkeypatch):
        assert load_model(str(base), lora="someone/pickled").fingerprint == expected
