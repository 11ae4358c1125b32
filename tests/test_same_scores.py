"""Every method gives the scores that it gave before, which tests/same_scores.npz holds. They are asked for through
`dtrak.attribute` alone. `python tests/test_same_scores.py CASE` writes what the file has of a case anew."""

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import UNet2DConditionModel
from numpy.typing import NDArray
from peft import LoraConfig, get_peft_model_state_dict
from safetensors.torch import save_file

import dtrak
import tiny
from dtrak.methods import METHODS
from dtrak.models import save_model
from tiny_benchmark import random_halves
from tiny_clip import save_clip
from tiny_stable_diffusion import save_paintings, save_pipeline

KEPT = Path(__file__).parent / "same_scores.npz"
DIGITS = Path(__file__).parent.parent / "benchmarks" / "digits" / "model"  # a trained network
NEAR = 1e-4  # of the largest score
OTHERS = {"datamodel-lasso": 1e-2}  # scikit-learn stops before its optimum
SEEDS, SUBSETS, MEMBERS = (7, 3, 11), 24, (1, 2)
PROMPTS = ["a disc by anna", "a stripe by carl", "bert"]
CHANGING = "ek-fac"  # its probes will be drawn in another way
ALL = [name for name in METHODS if name != CHANGING]
APART = ["step-trak", "das", "retrac"]  # these keep the copies of an image apart
KERNELS = ["trak", "d-trak", "mixed-trak", "relative-if", "renormalized-if", "journey-trak", "step-trak", "das"]

# (model, methods, settings) by name.
CASES: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "unet": ("unet", ALL, {}),
    "lora": ("lora", ALL, {}),
    "digits": ("digits", ALL, {"timesteps": 2, "projection_dim": 128}),
    "a fraction of the mean eigenvalue": ("unet", KERNELS, {"damping": 0.1}),
    "by the spectrum": ("unet", KERNELS, {"damping": "spectrum", "timesteps": 3}),
    "an absolute damping": ("digits", ["trak", "step-trak"], {"damping": "absolute:1e-3", "projection_dim": 128}),
    "identity": ("unet", ["trak", *APART], {"projection": "identity", "parameters": "conv_in|conv_out"}),
    "factored": ("unet", ["trak", *APART], {"projection": "factored"}),
    "sketch": ("unet", ["trak", *APART], {"projection": "sketch", "projection_dim": 32}),
    "dense": ("unet", ["trak", *APART], {"projection": "dense", "projection_dim": 32, "projection_seed": 5}),
    "two noises": ("unet", ["trak", *APART], {"draws": 2, "seed": 3}),
    "chosen timesteps": ("unet", ["trak", *APART], {"timesteps": "0,700,300"}),
    "the first timesteps": ("unet", ["trak", *APART], {"timesteps": "cumulative:3"}),
    "elbo": ("unet", ["d-trak", "step-trak"], {"objective": "elbo"}),
    "interpolated": ("unet", ["d-trak", "step-trak"], {"objective": "interpolated(0.3)"}),
    "linf": ("unet", ["d-trak", "step-trak"], {"objective": "linf"}),
    "one step of the trajectory": ("unet", ["journey-trak"], {"step": 400}),
    "noise of each image": ("unet", ["trak", "step-trak"], {"noise": "per-image"}),
    "ek-fac, unet": ("unet", [CHANGING], {}),
    "ek-fac, lora": ("lora", [CHANGING], {}),
    "ek-fac, digits": ("digits", [CHANGING], {"timesteps": 2, "parameters": "up_blocks"}),
}
MOVING = [name for name in CASES if "ek-fac" in name or name == "noise of each image"]  # will change once


def model_of(kind: str, member: int, folder: Path) -> dtrak.DiffusionModel:
    """One of several models of a kind: 0 is the one that is asked about."""
    random = torch.Generator().manual_seed(member)
    if kind == "unet":
        return tiny.unet(seed=member)
    if kind == "digits":
        model = dtrak.load_model(DIGITS)
        with torch.no_grad():
            for value in model.network.parameters():
                value += 0.1 * member * value.std(correction=0) * torch.randn(value.shape, generator=random)
        return model
    if not (folder / "base").exists():
        save_pipeline(folder / "base")
    network = UNet2DConditionModel.from_pretrained(folder / "base" / "unet")
    network.add_adapter(LoraConfig(r=4, target_modules=["to_q", "to_k", "to_v", "to_out.0"]))
    weights = {  # under diffusers' names
        "unet." + name.replace("lora_A", "lora.down").replace("lora_B", "lora.up"): value
        for name, value in sorted(get_peft_model_state_dict(network).items())
    }
    drawn = {name: 0.2 * torch.randn(value.shape, generator=random) for name, value in weights.items()}
    lora = folder / f"lora-{member}"
    lora.mkdir(exist_ok=True)
    save_file(drawn, lora / "pytorch_lora_weights.safetensors")
    return dtrak.load_model(folder / "base", lora=lora, prompt="{caption}")


def images_of(kind: str, folder: Path) -> dtrak.Images:
    if kind == "lora":
        return dtrak.load_images(str(save_paintings(folder / "paintings", 18)))
    return dtrak.load_images("digits:train").select(range(12 if kind == "unet" else 200))


def question_of(kind: str, folder: Path, pictures: NDArray[np.uint8]) -> dict[str, Any]:
    """Model, images, checkpoints, retrained models, encoder: all that any method needs.

    The queries are pictures that the model drew from `SEEDS` in 5 steps.
    """
    model, train = model_of(kind, 0, folder), images_of(kind, folder)
    queries = dtrak.images_from(pictures, name="drawn", seed=SEEDS, caption=PROMPTS)
    random, retrained, masks = np.random.default_rng(1), folder / "benchmark", random_halves(SUBSETS, len(train))
    losses = masks[:, :5] @ random.random((5, len(queries))) + 0.1 * random.random((2, SUBSETS, len(queries)))
    for member in MEMBERS:
        other = model_of(kind, member, folder)
        save_model(other, folder / "checkpoints" / f"step-{member}")
        save_model(other, retrained / "retrained" / f"subset-00{member}-seed-0")
    save_model(model, retrained / "model")
    np.savez(retrained / "train.npz", images=train.pixels(range(len(train))))
    np.savez(retrained / "generated.npz", images=pictures)
    np.save(retrained / "masks.npy", masks)
    np.save(retrained / "generated_losses.npy", losses.swapaxes(0, 1).astype(np.float32))
    return {
        "model": model,
        "train": train,
        "queries": queries,
        "checkpoints": folder / "checkpoints",
        "retrained": retrained,
        "encoder": str(save_clip(folder / "clip")),
        "timesteps": 4,
        "ddim_steps": 5,
        **({"guidance": 2.0} if kind == "lora" else {}),
    }


Ask = Callable[[str], dict[str, NDArray[Any]]]


def asking(folder: Path, kept: dict[str, NDArray[Any]]) -> Ask:
    @cache
    def question(kind: str) -> dict[str, Any]:
        (folder / kind).mkdir()
        return question_of(kind, folder / kind, kept[f"{kind} drew"])

    def ask(case: str) -> dict[str, NDArray[Any]]:
        """Scores [Q, N] by method, and self-influence [N] where a method has it."""
        kind, methods, settings = CASES[case]
        found = dtrak.attribute(method=methods, **question(kind) | settings)
        own = {f"{name}, itself": one.self_influence for name, one in found.items() if one.self_influence is not None}
        return {name: one.values for name, one in found.items()} | own

    return ask


@pytest.fixture(scope="module")
def kept() -> dict[str, NDArray[Any]]:
    with np.load(KEPT) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory, kept: dict[str, NDArray[Any]]) -> Ask:
    return asking(tmp_path_factory.mktemp("same-scores"), kept)


def assert_same(case: str, ask: Ask, kept: dict[str, NDArray[Any]]) -> None:
    expected = {name.removeprefix(f"{case}: "): one for name, one in kept.items() if name.startswith(f"{case}: ")}
    found = ask(case)
    assert expected.keys() <= found.keys()
    apart = {name: np.abs(found[name] - one).max() / np.abs(one).max() for name, one in expected.items()}
    assert {name: one for name, one in apart.items() if not one < OTHERS.get(name, NEAR)} == {}


@pytest.mark.parametrize("case", [name for name in CASES if name not in MOVING])
def test_scores_are_those_of_before(case: str, ask: Ask, kept: dict[str, NDArray[Any]]) -> None:
    assert_same(case, ask, kept)


@pytest.mark.parametrize("case", MOVING)
def test_scores_that_will_move_once(case: str, ask: Ask, kept: dict[str, NDArray[Any]]) -> None:
    """EK-FAC's probes and the noise of each image will be named by the images' pixels."""
    assert_same(case, ask, kept)


if __name__ == "__main__":
    with np.load(KEPT) as arrays, TemporaryDirectory() as temporary:
        known = dict(arrays)
        ask_now = asking(Path(temporary), known)
        for case in sys.argv[1:]:
            known = {name: one for name, one in known.items() if not name.startswith(f"{case}: ")}
            known |= {f"{case}: {name}": one for name, one in ask_now(case).items()}
        np.savez_compressed(KEPT, **known)
