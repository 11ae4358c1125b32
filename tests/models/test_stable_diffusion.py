"""Stable Diffusion with LoRA, against diffusers and peft themselves, on a tiny pipeline that diffusers saved."""

import copy
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor

from dtrak.errors import UsageError
from dtrak.features.model_inputs import model_inputs
from dtrak.features.spec import Spec
from dtrak.gradients.copies import Copies
from dtrak.gradients.featurizer import Featurizer
from dtrak.gradients.objectives import square
from dtrak.gradients.projections import make_projection
from dtrak.images.images import Images, load_images
from dtrak.models import DiffusionModel, load_model, save_model
from dtrak.models.memory import PeakMemory
from dtrak.models.prompts import PipelineText
from dtrak.models.sampling import sample
from dtrak.noise import gaussian
from featurized import featurize
from tiny_stable_diffusion import SIDE, save_paintings, save_pipeline, trainer_of

TIMESTEPS = (100, 700)


@pytest.fixture(scope="module")
def lora(painting_recipe: Path, paintings: Images, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a LoRA after a few steps, so that none of its weights is zero."""
    trainer = trainer_of(painting_recipe, paintings)
    for _ in range(3):
        trainer.take_step()
    folder = tmp_path_factory.mktemp("lora") / "model"
    save_model(trainer.model, folder)
    return folder


def pipeline_of(base: Path, lora: Path | None = None) -> StableDiffusionPipeline:
    """What a user of diffusers has."""
    pipeline = StableDiffusionPipeline.from_pretrained(base)
    pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config, clip_sample=False)
    pipeline.set_progress_bar_config(disable=True)
    if lora is not None:
        pipeline.load_lora_weights(str(lora), adapter_name="default")
        dropouts = [one for one in pipeline.unet.modules() if isinstance(one, torch.nn.Dropout)]
        assert not any(one.training and one.p for one in dropouts)
    return pipeline


def embedded(pipeline: StableDiffusionPipeline, prompts: Sequence[str]) -> Tensor:
    return pipeline.encode_prompt(list(prompts), "cpu", 1, do_classifier_free_guidance=False)[0].detach()


def test_features_are_the_gradients_that_diffusers_and_peft_give(
    base: Path, lora: Path, paintings: Images, tmp_path: Path
) -> None:
    """∇ over LoRA parameters of the mean loss of an image's latents, told its caption, for two objectives."""
    few = paintings.select([0, 4, 8])
    settings = Spec(timesteps="100,700", projection="identity")
    stores = featurize(load_model(str(lora)), few, ["simple", "square"], settings, tmp_path, "train")
    pipeline = pipeline_of(base, lora)
    unet = pipeline.unet.eval()
    trained = [value for name, value in unet.named_parameters() if "lora_" in name]
    assert len(trained) == 64
    assert all(value.requires_grad for value in trained)
    words = embedded(pipeline, [str(one) for one in few.columns["caption"]])
    with torch.no_grad():
        latents = pipeline.vae.encode(few.tensor(range(3))).latent_dist.mode() * pipeline.vae.config.scaling_factor
    for row in range(3):
        losses = {"simple": 0.0, "square": 0.0}
        for t in TIMESTEPS:
            noise = gaussian(tuple(latents.shape[1:]), 0, t, 0)[None]
            noisy = pipeline.scheduler.add_noise(latents[row : row + 1], noise, torch.tensor([t]))
            answer = unet(noisy, torch.tensor([t]), encoder_hidden_states=words[row : row + 1]).sample
            losses["simple"] = losses["simple"] + (answer - noise).square().mean() / len(TIMESTEPS)
            losses["square"] = losses["square"] + answer.square().mean() / len(TIMESTEPS)
        for objective, loss in losses.items():
            expected = torch.cat([one.flatten() for one in torch.autograd.grad(loss, trained, retain_graph=True)])
            found = torch.from_numpy(stores[objective].numpy()[row])
            assert float((found - expected).norm() / expected.norm()) < 1e-4


def test_pictures_are_those_that_diffusers_draws(base: Path, lora: Path) -> None:
    model, pipeline, prompts = load_model(str(lora)), pipeline_of(base, lora), ["a disc by anna", "a stripe by bert"]
    for guidance in (7.5, 1.0):
        drawn = sample(model, [3, 4], 5, prompts=prompts, guidance=guidance)
        start = torch.stack([gaussian(model.shape, seed, "x_T") for seed in (3, 4)])
        expected = pipeline(
            prompts,
            num_inference_steps=5,
            guidance_scale=guidance,
            latents=start,
            output_type="pt",
            height=SIDE,
            width=SIDE,
        ).images
        torch.testing.assert_close((drawn.pictures + 1) / 2, expected, rtol=0, atol=1e-4)


def test_prompts_and_guidance_change_pictures(lora: Path) -> None:
    model = load_model(str(lora))
    one, other = (sample(model, [0], 5, prompts=[text], guidance=7.5).pictures for text in ("a disc", "bert"))
    assert not torch.equal(one, other)
    assert not torch.equal(one, sample(model, [0], 5, prompts=["a disc"]).pictures)


def as_kohya(lora: Path, alpha: float) -> dict[str, Tensor]:
    """The weights of a LoRA under the names that kohya's scripts give them."""
    weights = {}
    for name, value in load_file(lora / "pytorch_lora_weights.safetensors").items():
        layer, part = name.removeprefix("unet.").removesuffix(".weight").split(".lora.")
        key = "lora_unet_" + layer.replace(".", "_")
        weights |= {f"{key}.lora_{part}.weight": value.contiguous(), f"{key}.alpha": torch.tensor(alpha)}
    return weights


@pytest.mark.parametrize("layout", ["diffusers", "file", "peft", "peft file", "kohya"])
def test_lora_formats(base: Path, lora: Path, layout: str, tmp_path: Path) -> None:
    """The same weights, however they were saved, answer alike."""
    trained = load_model(str(lora))
    folder = tmp_path / layout
    if layout.startswith("peft"):
        unet = pipeline_of(base).unet
        config = LoraConfig(r=4, lora_alpha=8, target_modules=["to_q", "to_k", "to_v", "to_out.0"])
        adapted = get_peft_model(unet, config)
        assert isinstance(adapted, PeftModel)
        adapted.load_state_dict({f"base_model.model.{n}": v for n, v in trained.trained_weights.items()}, strict=False)
        adapted.save_pretrained(folder)
        source = str(folder / "adapter_model.safetensors" if layout == "peft file" else folder)
    elif layout == "kohya":
        folder.mkdir()
        save_file(as_kohya(lora, alpha=8.0), folder / "anything.safetensors")
        source = str(folder)
    else:
        shutil.copytree(lora, folder)
        (folder / "dtrak.json").unlink()
        source = str(folder) if layout == "diffusers" else str(folder / "pytorch_lora_weights.safetensors")
    found = load_model(str(base), lora=source)
    assert found.parameters().keys() == trained.parameters().keys()
    x, t = gaussian((2, *trained.shape), 0), torch.tensor([10, 500])
    told = {"encoder_hidden_states": gaussian((2, 24, 16), 1)}
    with torch.no_grad():
        torch.testing.assert_close(found.predict(x, t, told), trained.predict(x, t, told), rtol=0, atol=1e-5)
        assert not torch.allclose(found.predict(x, t, told), load_model(str(base)).predict(x, t, told), atol=1e-5)


def test_what_is_attributed(base: Path, lora: Path) -> None:
    model, pipeline = load_model(str(lora)), load_model(str(base))
    assert all("lora_" in name for name in model.parameters())
    everything = model.parameters("all")
    assert len(everything) > len(model.parameters())
    assert all("up_blocks" in name and "lora_" in name for name in model.parameters(r"up_blocks.*lora_"))
    assert pipeline.parameters().keys() == pipeline.parameters("all").keys()
    assert not any("lora_" in name for name in pipeline.parameters())


def test_training_changes_the_lora_alone_and_goes_on_where_it_stopped(
    painting_recipe: Path, paintings: Images, tmp_path: Path
) -> None:
    whole = trainer_of(painting_recipe, paintings)
    before = copy.deepcopy(whole.model.network.state_dict())
    for _ in range(4):
        whole.take_step()
    for name, value in whole.model.network.state_dict().items():
        assert torch.equal(value, before[name]) == ("lora_" not in name), name
    first = trainer_of(painting_recipe, paintings)
    for _ in range(2):
        first.take_step()
    first.save(tmp_path / "state")
    assert all("lora_" in name for name in load_file(tmp_path / "state") if name.startswith("weights/"))
    second = trainer_of(painting_recipe, paintings)
    second.load(tmp_path / "state")
    for _ in range(2):
        second.take_step()
    for name, value in whole.model.trained_weights.items():
        assert torch.equal(value, second.model.trained_weights[name])


def test_latents_are_drawn_in_training_and_their_mode_counts_otherwise(base: Path, paintings: Images) -> None:
    model, pipeline = load_model(str(base)), pipeline_of(base)
    view = model_inputs(model, paintings, mirrored=True)
    rows = [2, 5]
    with torch.no_grad():
        posterior = pipeline.vae.encode(paintings.tensor(rows)).latent_dist
        flipped = pipeline.vae.encode(paintings.tensor(rows).flip(-1)).latent_dist
    scale = pipeline.vae.config.scaling_factor
    torch.testing.assert_close(view.tensor(rows), posterior.mode() * scale, rtol=0, atol=1e-5)
    drawn = torch.stack([view.drawn(rows, np.random.default_rng(seed), flip=False) for seed in range(400)])
    spread = (posterior.std * scale).mean()
    assert float((drawn.mean(0) - posterior.mean * scale).abs().max()) < 6 * float(posterior.std.max() * scale) / 20
    torch.testing.assert_close(drawn.std(0).mean(), spread, rtol=0.02, atol=0)
    both = torch.stack([view.drawn(rows, np.random.default_rng(seed), flip=True) for seed in range(400)]).mean(0)
    middle = (posterior.mean + flipped.mean) / 2 * scale
    assert float((both - middle).abs().mean()) < float((both - posterior.mean * scale).abs().mean())


def test_latents_and_embeddings_are_computed_once(base: Path, paintings: Images, tmp_path: Path) -> None:
    model = load_model(str(base))
    first = model_inputs(model, paintings, tmp_path)
    assert model.autoencoder is not None
    assert model.prompts is not None
    model.autoencoder.network.encoder.register_forward_hook(lambda *_: pytest.fail("it was encoded again"))
    words = []
    model.prompts.encoder.pipeline.text_encoder.register_forward_hook(lambda *_: words.append(1))
    again = model_inputs(model, paintings, tmp_path)
    assert len(words) == 1  # for the shape
    assert torch.equal(first.latents[0], again.latents[0])
    rows = range(len(paintings))
    assert torch.equal(*(view.condition(rows)["encoder_hidden_states"] for view in (first, again)))


def test_features_depend_on_the_prompt(lora: Path, paintings: Images, tmp_path: Path) -> None:
    settings, one = Spec(timesteps="uniform:1", projection="identity"), paintings.select([0])
    other = replace(one, columns={"prompt": np.array(["something else"])})
    model = load_model(str(lora))
    found = [
        featurize(model, each, ["square"], settings, tmp_path / str(n), "x")["square"]
        for n, each in enumerate((one, other))
    ]
    assert not np.allclose(found[0].numpy(), found[1].numpy())
    beside = featurize(model, other, ["square"], settings, tmp_path / "0", "x")["square"]
    np.testing.assert_array_equal(beside.numpy(), found[1].numpy())


def test_other_sizes(lora: Path, tmp_path: Path) -> None:
    model = load_model(str(lora))
    assert model.image_shape == (3, 16, 16)
    assert model.fitted_to((3, 32, 24)).image_shape == (3, 32, 24)
    for shape, remedy in {(3, 18, 18): "--size 16", (1, 16, 16): "images in colour"}.items():
        with pytest.raises(UsageError, match=remedy):
            model.fitted_to(shape).check_fits(shape, "pictures")


def test_fingerprints(base: Path, lora: Path) -> None:
    """They change with the LoRA, the base, the autoencoder and the text encoder."""
    found = {load_model(str(lora)).fingerprint, load_model(str(base)).fingerprint}
    for part in ("network", "autoencoder", "prompts"):
        model = load_model(str(lora))
        assert model.fingerprint in found
        assert model.autoencoder is not None
        assert model.prompts is not None
        encoder = model.prompts.encoder
        assert isinstance(encoder, PipelineText)
        text = encoder.pipeline.text_encoder
        network = {"network": model.network, "autoencoder": model.autoencoder.network, "prompts": text}[part]
        with torch.no_grad():
            next(value for name, value in network.named_parameters() if "lora_" not in name).add_(1)
        changed = DiffusionModel(
            model.network,
            model.scheduler,
            model.shape,
            autoencoder=replace(model.autoencoder),
            conditioner=model.prompts,
        )
        assert changed.fingerprint not in found
        found.add(changed.fingerprint)
    assert len(found) == 5


def test_fingerprints_change_with_what_is_no_weight(base: Path, lora: Path, tmp_path: Path) -> None:
    """A LoRA's scale, and the tokenizer."""
    found = set()
    for alpha in (8.0, 1.0):
        path = tmp_path / f"{alpha}.safetensors"
        save_file(as_kohya(lora, alpha), path)
        found.add(load_model(str(base), lora=str(path)).fingerprint)
    assert len(found) == 2
    other = Path(shutil.copytree(base, tmp_path / "other"))
    settings = other / "tokenizer" / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"pad_token": "a</w>"}))
    assert load_model(str(other)).fingerprint != load_model(str(base)).fingerprint


def test_features_take_the_memory_of_a_training_step(painting_recipe: Path, paintings: Images, tmp_path: Path) -> None:
    """The U-Net is there once; beside it, as much as six images take in training, or six copies of one."""
    trainer = trainer_of(painting_recipe, paintings)
    unet = sum(value.nbytes for value in trainer.model.network.parameters())
    trainer.take_step()
    with PeakMemory() as step:
        trainer.take_step()
    parameters, told = trainer.model.parameters(), trainer.inputs.condition([0])
    projection = make_projection("sketch", 64, {name: tuple(value.shape) for name, value in parameters.items()}, 0)

    def feature_peak(count: int) -> int:
        copies = Copies(tuple(range(0, 100 * count, 100)))
        features = Featurizer(trainer.model, [square], copies, projection, parameters, condition=told, batch_size=1)
        with PeakMemory() as peak:
            features(trainer.inputs.tensor([0]), [0], told)
        return peak.bytes

    assert feature_peak(6) <= 1.1 * step.bytes
    assert feature_peak(1) < unet, "nothing is as large as a second U-Net"


def test_many_pictures_are_decoded_a_few_at_a_time(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(str(base))
    assert model.autoencoder is not None
    latents = gaussian((5, *model.shape), "latents")
    whole = model.decode(latents)
    monkeypatch.setattr("dtrak.models.autoencoder.PIXELS_AT_ONCE", 2 * SIDE * SIDE)
    sizes: list[int] = []
    model.autoencoder.network.decoder.register_forward_hook(lambda _, inputs, output: sizes.append(len(output)))
    torch.testing.assert_close(model.decode(latents), whole, rtol=0, atol=1e-5)
    assert sizes == [2, 2, 1]
    assert model.encode(whole).shape == latents.shape


def test_what_cannot_be_loaded(base: Path, lora: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(lora, tmp_path / "alone"))
    (alone / "dtrak.json").unlink()
    with pytest.raises(UsageError, match="does not name its pipeline"):
        load_model(str(alone))
    with pytest.raises(UsageError, match="no LoRA at 'nowhere'"):
        load_model(str(base), lora="nowhere")
    other = {f"unet.{name}.lora_A.weight": torch.zeros(4, 9) for name in ("mid_block.attentions.0.proj_in",)}
    save_file(other, tmp_path / "other.safetensors")
    with pytest.raises(UsageError, match="does not fit"):
        load_model(str(base), lora=str(tmp_path / "other.safetensors"))
    weights = load_file(lora / "pytorch_lora_weights.safetensors")
    name = min(name for name in weights if "to_q" in name and ("lora_A" in name or "lora.down" in name))
    wider = {one: torch.zeros(len(value), 77) if one == name else value for one, value in weights.items()}
    save_file(wider, tmp_path / "wider.safetensors")
    with pytest.raises(UsageError, match=r"to_q\.lora_A is \[4, 77\], but must be \[4, 16\]; .* another base model"):
        load_model(str(base), lora=str(tmp_path / "wider.safetensors"))
    broken = Path(shutil.copytree(base, tmp_path / "broken"))
    (broken / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    with pytest.raises(UsageError, match="has no weights: vae/"):
        load_model(str(broken))
    half = Path(shutil.copytree(base, tmp_path / "half"))
    words = load_file(half / "text_encoder" / "model.safetensors")
    del words[next(name for name in words if "q_proj.weight" in name)]
    save_file(words, half / "text_encoder" / "model.safetensors", {"format": "pt"})
    with pytest.raises(UsageError, match=r"its weights lack .*q_proj"):
        load_model(str(half))
    painter = Path(shutil.copytree(base, tmp_path / "painter"))
    config = painter / "unet" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"in_channels": 9}))
    with pytest.raises(UsageError, match="maps 9 channels to 4: pipelines for inpainting"):
        load_model(str(painter))
    with pytest.raises(UsageError, match="only a LoRA can be saved"):
        save_model(load_model(str(base)), tmp_path / "whole")
    larger = Path(shutil.copytree(base, tmp_path / "larger"))
    (larger / "text_encoder_2").mkdir()
    with pytest.raises(UsageError, match="Stable Diffusion 1 and 2"):
        load_model(str(larger))


def test_v_prediction(tmp_path: Path) -> None:
    """Stable Diffusion 2 answers v, from which ε follows."""
    model = load_model(str(save_pipeline(tmp_path / "two", "v_prediction")))
    x, noise, t = gaussian((2, *model.shape), 0), gaussian((2, *model.shape), 1), torch.tensor([200, 600])
    told = {"encoder_hidden_states": gaussian((2, 24, 16), 2)}
    noisy = model.process.add_noise(x, noise, t)
    alphas = DDIMScheduler.from_config(model.scheduler.config).alphas_cumprod[t].view(-1, 1, 1, 1)
    with torch.no_grad():
        v = model.network(noisy, t, **told).sample
        expected = alphas.sqrt() * v + (1 - alphas).sqrt() * noisy
        torch.testing.assert_close(model.predict_target(noisy, t, told), expected)


def test_about_file_names_the_base_in_full(base: Path, lora: Path) -> None:
    about = json.loads((lora / "dtrak.json").read_text())
    assert about == {
        "base": str(base.resolve()),
        "prompt": "{caption}",
        "lora": {"rank": 4, "alpha": 8, "dropout": 0.1},
    }
    assert load_model(str(lora)).base == str(base.resolve())


def test_paintings_have_artists(tmp_path: Path) -> None:
    images = load_images(str(save_paintings(tmp_path / "few", 3)))
    assert images.columns["artist"].tolist() == ["anna", "bert", "carl"]
