"""Tiny worlds: a folder with a model, training images and queries, all of them as a *state* says.

A state is a value for every fact in the table of `changes.py`. Nothing else is in a world: worlds of one kind with
equal states hold equal things. What is answered in a world with a long past has to be what is answered in a new one of
the same state. Files are changed so that it is hard to notice: in place, and with the times that they had before.

    pixels    a run of a U-Net on pixels that `dtrak train` has made, with checkpoints, a benchmark folder and an LDS
    lora      a run of a LoRA on a tiny Stable Diffusion, whose images have captions
    latent    the tiny Stable Diffusion itself, trained elsewhere
    module    a network, its images and functions in memory (`memory_world.py`)
"""

import io
import json
import os
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from numpy.typing import NDArray
from PIL import Image

import dtrak
from in_process import command
from tiny_clip import save_clip
from tiny_pipelines import WIDTH, clip, clip_tokenizer

State = dict[str, Any]
SIDE, TRAIN, QUERIES = 8, 8, 2
MEASURED = "trak,step-trak"  # methods with an LDS in the world of pixels


class World:
    """A folder as its state says."""

    def __init__(self, kind: str, folder: Path, state: State, template: Path) -> None:
        self.kind, self.folder, self.state, self.template = kind, folder, dict(state), template
        # In which state something was made that stays when other things change.
        self.made: dict[str | None, State] = {"run": dict(state)} if self.is_trained else {}

    def model(self) -> Any:
        """What `dtrak.attribute` takes as the model."""
        if self.is_trained:
            return "run/model"
        return dtrak.load_model("base", prompt=self.prompt, precision=self.state["precision"])

    @property
    def prompt(self) -> str:
        return "{caption} in oil" if self.state["template"] else "{caption}"

    def images(self, side: str) -> Any:
        """What it takes as training images ("train") or queries ("queries")."""
        return "drawn" if side == "queries" and self.state["methods"] == "journey-trak" else side

    def fixed(self) -> State:
        """Settings that are the same in all states."""
        return {"checkpoints": "run/checkpoints", "retrained": "benchmark"} if self.kind == "pixels" else {}

    @property
    def is_trained(self) -> bool:
        """Whether `dtrak train` made its run."""
        return self.kind in ("pixels", "lora")


# images and their columns


def pictures(count: int, channels: int, seed: int) -> NDArray[np.uint8]:
    """[count, 8, 8, channels], coarse enough for an autoencoder."""
    coarse = np.random.default_rng(seed).integers(0, 256, (count, 4, 4, channels), dtype=np.uint8)
    return coarse.repeat(SIDE // 4, 1).repeat(SIDE // 4, 2)


def write_images(world: World) -> None:
    """The folders train/ and queries/, with their metadata."""
    state, channels = world.state, 1 if world.kind == "pixels" else 3
    pixels, asked = pictures(TRAIN + 1, channels, 0), pictures(QUERIES, channels, 1)
    pixels[3, :2] ^= np.uint8(255 * state["pixel"])
    asked[1, :2] ^= np.uint8(255 * state["query pixel"])
    names = [f"{n}.png" for n in range(TRAIN + 1)]
    artists = ["a", "b", "a", "c", "b", "a", "c", "b", "a"]
    captions = [f"a boat {n}" for n in range(TRAIN + 1)]
    if state["name"]:
        names[4] = "4a.png"
    if state["order"]:
        names[0] = "z.png"
    if state["swap"]:
        names[5], names[6] = names[6], names[5]
    if state["artist"]:
        artists[2] = "d"
    if state["caption"]:
        captions[1] = "a very old house"
    _sync(world.folder / "train", pixels[: TRAIN + state["added"]], file_name=names, artist=artists, caption=captions)
    prompts = ["a boat", "a house" if state["query caption"] else "a tree"]
    _sync(world.folder / "queries", asked, file_name=["q0.png", "q1.png"], caption=prompts)


def _sync(folder: Path, pixels: NDArray[np.uint8], **columns: list[str]) -> None:
    """Make a folder hold these images alone. One that has another name is renamed, a changed one overwritten."""
    rows = [{name: values[n] for name, values in columns.items()} for n in range(len(pixels))]
    wanted = {row["file_name"]: _png(one) for row, one in zip(rows, pixels, strict=True)}
    wanted["metadata.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows).encode()
    folder.mkdir(exist_ok=True)
    there = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in sorted(there.keys() - wanted.keys()):
        new = [one for one in wanted if one not in there and wanted[one] == there[name]]
        if new:
            (folder / name).rename(folder / new[0])
            there[new[0]] = wanted[new[0]]
        else:
            (folder / name).unlink()
    for name, content in wanted.items():
        overwrite(folder / name, content)


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """A file whose size does not depend on the pixels [8, 8, channels]."""
    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(buffer, "PNG", compress_level=0)
    return buffer.getvalue()


def overwrite(path: Path, content: bytes) -> None:
    """Write a file in place, with the time of change that it had; leave one that has this content already."""
    if not path.exists():
        path.write_bytes(content)
    elif path.read_bytes() != content:
        before = path.stat()
        with open(path, "r+b") as file:
            file.write(content)
            file.truncate()
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


# models and what belongs to them


WEIGHTS = {
    "weights": ("run/model/unet/*.safetensors", "base/unet/*.safetensors"),
    "autoencoder weights": ("base/vae/*.safetensors",),
    "text encoder weights": ("base/text_encoder/*.safetensors",),
    "checkpoint weights": ("run/checkpoints/*/unet/*.safetensors",),
    "retrained weights": ("benchmark/retrained/*/unet/*.safetensors",),
    "encoder weights": ("clip/*.safetensors",),
}


def write_weights(world: World) -> None:
    """The weights of all parts: larger by a fifth if the state says so."""
    for fact, patterns in WEIGHTS.items():
        for path in (path for pattern in patterns for path in world.template.glob(pattern)):
            content = path.read_bytes()
            changed = larger(content) if world.state[fact] else content
            overwrite(world.folder / path.relative_to(world.template), changed)


def larger(content: bytes) -> bytes:
    """Return a file of float32 safetensors with larger numbers."""
    start = 8 + int.from_bytes(content[:8], "little")
    assert b'"dtype":"F32"' in content[:start]
    return content[:start] + (np.frombuffer(content[start:], dtype="<f4") * np.float32(1.2)).tobytes()


def write_schedule(world: World) -> None:
    """The configuration of the scheduler, with another end of its noises."""
    for path in [*world.template.glob("base/scheduler/*.json"), *world.template.glob("run/model/scheduler/*.json")]:
        content = json.loads(path.read_text())
        content["beta_end"] *= 0.5 if world.state["scheduler"] else 1
        overwrite(world.folder / path.relative_to(world.template), json.dumps(content).encode())


def write_lora(world: World) -> None:
    """A trained LoRA: its weights, their strength, and beside them its pipeline, by a full path, and its prompt."""
    for path in world.template.glob("run/model/*lora*.safetensors"):
        content = larger(path.read_bytes()) if world.state["lora weights"] else path.read_bytes()
        assert b'lora_alpha\\": 2' in content
        stronger = content.replace(b'lora_alpha\\": 2', b'lora_alpha\\": 3') if world.state["strength"] else content
        overwrite(world.folder / path.relative_to(world.template), stronger)
    for path in world.template.glob("run/*/**/dtrak.json"):
        about = json.loads(path.read_text()) | {"base": str(world.folder / "base"), "prompt": world.prompt}
        overwrite(world.folder / path.relative_to(world.template), json.dumps(about).encode())


def write_losses(world: World) -> None:
    """The losses of the retrained models of the benchmark."""
    losses = np.load(world.template / "benchmark" / "losses.npy")
    buffer = io.BytesIO()
    np.save(buffer, losses[::-1] if world.state["losses"] else losses)
    overwrite(world.folder / "benchmark" / "losses.npy", buffer.getvalue())


PLUG_IN = """
def outside(predicted, noise, elbo_weights):
    return (predicted - noise).abs().pow({power}).flatten(1).mean(1)
"""


def write_plug_in(world: World) -> None:
    """An installed package that has an objective."""
    about = world.folder / "packages" / "outside-1.0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[dtrak.objectives]\noutside = outside:outside\n")
    overwrite(about.parent / "outside.py", PLUG_IN.format(power=3 if world.state["package"] else 4).encode())


def touch(world: World) -> None:
    """Give all files of the user's new times."""
    for part in ("train", "queries", "base", "clip", "benchmark", "run/model", "run/checkpoints"):
        for path in (world.folder / part).rglob("*"):
            os.utime(path, (1_600_000_000 + world.state["touch"],) * 2)


def move(world: World) -> None:
    """Move the whole folder to another place, and tell the LoRA where its pipeline is now."""
    name = world.folder.name.partition("@")[0]
    world.folder = world.folder.rename(world.folder.with_name(f"{name}@{world.state['place']}"))
    write_lora(world)


# templates

RECIPES: dict[str, Any] = {
    "pixels": {
        "model": {
            "unet": {
                "block_out_channels": [4],
                "layers_per_block": 1,
                "down_block_types": ["DownBlock2D"],
                "mid_block_type": None,
                "up_block_types": ["UpBlock2D"],
                "norm_num_groups": 2,
            }
        },
        "training": {"epochs": 4, "batch_size": 4, "learning_rate": 1e-2, "checkpoints": 2},
    },
    "lora": {
        "model": {
            "kind": "stable-diffusion",
            "base": "base",
            "lora": {"rank": 1, "alpha": 2},
            "prompt": "{caption}",
        },
        "training": {"epochs": 4, "batch_size": 4, "learning_rate": 1e-2, "checkpoints": 1},
    },
}


def save_pipeline(folder: Path) -> None:
    """A Stable Diffusion of some 20,000 parameters."""
    torch.manual_seed(0)
    words = clip_tokenizer(folder.with_name("words"))
    autoencoder = AutoencoderKL(
        block_out_channels=(8,), norm_num_groups=4, latent_channels=4, sample_size=SIDE, scaling_factor=0.5
    )
    unet = UNet2DConditionModel(
        sample_size=SIDE,
        block_out_channels=(8,),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D",),
        mid_block_type=None,
        up_block_types=("CrossAttnUpBlock2D",),
        cross_attention_dim=WIDTH,
        attention_head_dim=4,
        norm_num_groups=4,
    )
    encoder = clip(words, False)
    encoder.get_input_embeddings().weight.data *= 30  # so that pictures of other words are other pictures
    parts = autoencoder, encoder, words, unet, DDIMScheduler(clip_sample=False, steps_offset=1), None, None
    StableDiffusionPipeline(*parts, requires_safety_checker=False).save_pretrained(folder, safe_serialization=True)


def make_template(world: World, attribution: State, generation: State) -> None:
    """Fill the folder of a world of the usual state by the commands that a user would type."""
    world.folder.mkdir(parents=True)
    write_images(world)
    if world.kind != "pixels":
        save_pipeline(world.folder / "base")
    if world.is_trained:
        data = {"train": "train", "validation": "queries"}
        recipe = {"name": "tiny", "summary": "tiny", "data": data, **RECIPES[world.kind]}
        recipe |= {"attribution": attribution, "generation": generation}
        with chdir(world.folder):
            Path("tiny.yaml").write_text(yaml.safe_dump(recipe))
            command("train", "tiny.yaml", "--out", "run")
            command("generate", "run")
            Path("run/generated").rename("drawn")  # queries whose drawing is known
    if world.kind == "pixels":
        save_clip(world.folder / "clip")
        write_plug_in(world)
        subsets = ("--subsets", 5, "--seeds", 1, "--output-timesteps", 2, "--keep-models", "--engine", "process")
        with chdir(world.folder):
            command("evaluate", "lds", "run", "--method", MEASURED, "--damping", 0.1, *subsets)
            shutil.copytree("run/benchmark", "benchmark")
    for kept in ("features", "latents"):  # by evaluating and training
        shutil.rmtree(world.folder / "run" / kept, ignore_errors=True)
