"""Facts of a model: whatever changes what it computes changes them, at its own place, and nothing else does."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler, ScoreSdeVeScheduler
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import tiny
from dtrak import DiffusionModel, load_model
from dtrak.fingerprints import first_difference, first_random, hash_of
from dtrak.images.images import Images
from dtrak.models import save_model
from dtrak.models.prompts import PipelineText
from tiny_stable_diffusion import trainer_of

SHAPE = tiny.SHAPE


def read(model: DiffusionModel) -> Any:
    """The facts as a file would hold them."""
    facts = model.facts
    assert first_random(facts) is None
    assert json.loads(json.dumps(facts)) == facts
    return facts


def changed(model: DiffusionModel, change: Callable[[Any], object]) -> str | None:
    """The path of the first fact that a change in place alters."""
    before, old = read(model), model.fingerprint
    with torch.no_grad():
        change(model)
    after = read(model)
    assert (hash_of(after) != hash_of(before)) == (model.fingerprint != old)
    return first_difference(before, after)


def set_(name: str, value: Any) -> Callable[[Any], None]:
    """Set an attribute of the model, by its dotted name."""

    def change(model: Any) -> None:
        *path, last = name.split(".")
        for step in path:
            model = model[int(step)] if step.isdecimal() else getattr(model, step)
        if isinstance(model, dict):
            model[last] = value
        else:
            setattr(model, last, value)

    return change


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda model: model.network.conv_in.weight.data[0, 0, 0].add_(1e-6), "weights"),
        (lambda model: model.network.conv_in.requires_grad_(False).bias.data.mul_(1.001), "weights"),
        (lambda model: model.network.register_buffer("scale", torch.ones(1), persistent=False), "weights"),
        (lambda model: model.network.conv_out.half(), "weights"),
        (set_("network.conv_in.padding", (0, 2)), "network.attributes"),
        (set_("network.conv_norm_out.eps", 1e-3), "network.attributes"),
        (set_("network.mine", np.arange(3)), "network.attributes"),
        (set_("network.mid_block.resnets.0.output_scale_factor", 2.0), "network.attributes"),
        (lambda model: model.network.register_to_config(center_input_sample=True), "network.attributes"),
        (set_("process.scheduler.alphas_cumprod", torch.linspace(0.9, 0.1, 1000)), "noise.schedule"),
        # What leaves every output as it is.
        (lambda model: model.network.train(), None),
        (lambda model: model.network.requires_grad_(False), None),
        (lambda model: model.network.enable_gradient_checkpointing(), None),
        (lambda model: model.predict(torch.zeros(2, *SHAPE), torch.tensor([3, 900])), None),
        (lambda model: model.network.to(memory_format=torch.channels_last), None),
    ],
)
def test_networks(change: Callable[[Any], object], path: str | None) -> None:
    assert changed(tiny.unet(), change) == path


def test_models_that_are_made_anew_have_the_same_facts() -> None:
    assert tiny.unet().facts == tiny.unet().facts
    assert first_difference(tiny.unet().facts, tiny.unet(seed=1).facts) == "weights"
    assert first_difference(tiny.mixed().facts, tiny.mixed().facts) is None


@pytest.mark.parametrize(
    ("scheduler", "other", "path"),
    [
        (DDPMScheduler(), DDPMScheduler(prediction_type="v_prediction"), "noise.predicts"),
        (DDPMScheduler(), DDPMScheduler(beta_end=0.01), "noise.schedule"),
        (DDPMScheduler(), DDPMScheduler(clip_sample=False), "solver.clip_sample"),
        (DDPMScheduler(), DDPMScheduler(timestep_spacing="trailing"), "solver.timestep_spacing"),
        (DDPMScheduler(), DDPMScheduler(variance_type="fixed_large"), None),  # DDIM draws no noise
        (DDPMScheduler(), FlowMatchEulerDiscreteScheduler(), "noise.predicts"),
        (FlowMatchEulerDiscreteScheduler(), FlowMatchEulerDiscreteScheduler(shift=3.0), "noise.schedule"),
        (ScoreSdeVeScheduler(), ScoreSdeVeScheduler(sigma_max=90.0), "noise.sigma_max"),
    ],
)
def test_schedulers(scheduler: Any, other: Any, path: str | None) -> None:
    one, two = (DiffusionModel(tiny.unet().network, each, SHAPE) for each in (scheduler, other))
    assert first_difference(read(one), read(two)) == path


SCALE = 1.0


class Own(nn.Module):
    """A network of one's own."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self._scale, self.layer, self.table = scale, nn.Conv2d(1, 1, 1), [torch.ones(2), {"a": 1}]

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        out: Tensor = SCALE * self._scale * self.layer(x)
        return out


def of_cell(source: str) -> DiffusionModel:
    """A model whose class a cell of a notebook defines."""
    names: dict[str, Any] = {"__name__": "__main__", "nn": nn}
    exec(source, names)
    torch.manual_seed(0)
    return DiffusionModel(names["Net"](), DDPMScheduler(), SHAPE)


CELL = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 1)
    def forward(self, x, t):
        return {}self.layer(x)
"""


def test_networks_of_ones_own() -> None:
    torch.manual_seed(0)
    model = DiffusionModel(Own(1.0), DDPMScheduler(), SHAPE)
    assert changed(model, set_("network._scale", 2.0)) == "network.attributes"
    assert changed(model, lambda model: model.network.table[0].data.mul_(2)) == "network.attributes"
    assert changed(model, set_("network.table.1.a", 2)) == "network.attributes"
    one, same, other = (read(of_cell(CELL.format(sign))) for sign in ("", "", "-"))
    assert first_difference(one, same) is None
    assert first_difference(one, other) == "network.code.Net"


def scaled(network: nn.Module, x: Tensor, time: Tensor, condition: Any, scale: float = 1.0) -> Tensor:
    out: Tensor = scale * network(x, time).sample
    return out


def test_adapters_and_conditioners(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = tiny.unet()

    def by(factor: float) -> Any:
        return lambda network, x, time, condition: factor * SCALE * network(x, time).sample

    def told(factor: float) -> Any:
        return lambda images: {"y": factor * torch.ones(len(images))}

    def of(**parts: Any) -> Any:
        return read(replace(plain, **parts))

    adapters = (by(1), partial(scaled, scale=1.0), partial(scaled, scale=2.0))
    found = [of(), *(of(adapter=one) for one in adapters)]
    assert [first_difference(found[0], one) for one in found[1:]] == ["network.adapter"] * 3
    assert len({one["network"].get("adapter") for one in found}) == 4
    assert of(adapter=by(1)) == found[1]
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert first_difference(found[1], of(adapter=by(1))) == "network.adapter"
    conditioners: list[Any] = [{"y": "label"}, {"z": "label"}, {"y": "artist"}, told(1), told(2)]
    facts = [of(conditioner=one) for one in conditioners]
    assert len({hash_of(one["conditions"]) for one in facts}) == len(facts)
    assert [one["reads"] for one in facts] == [["label"], ["label"], ["artist"], None, None]
    assert of(conditioner=told(1)) == facts[3]
    assert found[0]["reads"] == []


def test_pipelines_with_a_lora(base: Path, painting_recipe: Path, paintings: Images, tmp_path: Path) -> None:
    lora, trainer = tmp_path / "lora", trainer_of(painting_recipe, paintings)
    trainer.take_step()
    save_model(trainer.model, lora)

    def fresh() -> DiffusionModel:
        return load_model(str(lora))

    expected = read(fresh())
    assert expected == read(fresh())
    assert expected["reads"] == ["prompt", "caption"]
    assert first_difference(expected, read(load_model(str(base)))) == "weights"
    assert first_difference(expected, read(load_model(str(lora), prompt="by {artist}"))) == "conditions.template"
    layer = "network.mid_block.attentions.0.transformer_blocks.0.attn1.to_q"
    cases: dict[str, tuple[Callable[[Any], object], str | None]] = {
        "scale": (set_(f"{layer}.scaling.default", 0.1), "network.attributes"),
        "off": (lambda model: model.network.disable_adapters(), "network.attributes"),
        "autoencoder": (
            lambda model: model.autoencoder.network.post_quant_conv.bias.data.add_(1),
            "autoencoder.weights",
        ),
        "latents": (
            lambda model: model.autoencoder.network.register_to_config(scaling_factor=0.3),
            "autoencoder.network.attributes",
        ),
        "text": (
            lambda model: next(model.prompts.encoder.pipeline.text_encoder.parameters()).data.add_(1),
            "conditions.encoder.text_encoder.weights",
        ),
        "words": (
            lambda model: model.prompts.encoder.pipeline.tokenizer.add_tokens(["ukiyo"]),
            "conditions.encoder.tokenizer.vocabulary",
        ),
        "use": (lambda model: model.prompts.encode(["a disc"]), None),
        "pictures": (lambda model: model.decode(torch.zeros(1, *model.shape)), None),
    }
    for name, (change, path) in cases.items():
        assert changed(fresh(), change) == path, name
    fitted = fresh().fitted_to((3, 32, 32))
    assert fitted.facts == expected
    assert fitted.fingerprint != fresh().fingerprint


def test_large_text_encoders_are_known_by_their_files(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that they need not be in memory."""
    monkeypatch.setattr("dtrak.models.pipelines.LARGE", 0)
    folder = Path(shutil.copytree(base, tmp_path / "model"))
    model = load_model(str(folder), prompt="{caption}")
    assert model.prompts is not None
    encoder = model.prompts.encoder
    assert isinstance(encoder, PipelineText)
    before = read(model)
    assert vars(encoder)["_pipeline"] is None
    model.prompts.encode(["a disc"])
    model.prompts.release()
    assert read(model) == read(load_model(str(base), prompt="{caption}")) == before
    half = read(load_model(str(folder), prompt="{caption}", precision="bfloat16"))
    assert first_difference(before["conditions"], half["conditions"]) == "encoder.precision"
    path = folder / "text_encoder" / "model.safetensors"
    save_file({name: value + 1 for name, value in load_file(path).items()}, path, {"format": "pt"})
    assert first_difference(before, read(model)) == "conditions.encoder.text_encoder/model.safetensors"
