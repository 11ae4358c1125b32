"""Folders of diffusers' models: from the disk or the hub, whole and safetensors only, with errors that name them."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from safetensors import SafetensorError

from dtrak.errors import UsageError

WEIGHTS = "diffusion_pytorch_model*.safetensors"
PARTS = ("unet", "vae", "text_encoder", "tokenizer", "scheduler")
# Beside a LoRA's weights: how diffusers calls them, what peft and dtrak write about them.
OF_DIFFUSERS, OF_PEFT, ABOUT = "pytorch_lora_weights.safetensors", "adapter_config.json", "dtrak.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
# What is downloaded of a model; the oldest ones have their network and their schedule at the top.
FILES = [
    "*.json",
    WEIGHTS,
    OF_DIFFUSERS,
    ADAPTER_WEIGHTS,
    *(f"{part}/*.{kind}" for part in PARTS for kind in ("json", "txt", "safetensors")),
]
VARIANTS = ["*.fp16.*", "*.non_ema.*"]  # of the same weights


def is_pipeline(folder: Path) -> bool:
    """Whether this is Stable Diffusion or a relative of it."""
    return (folder / "unet").is_dir() and (folder / "text_encoder").is_dir()


def is_lora(folder: Path) -> bool:
    return any((folder / name).exists() for name in (ABOUT, OF_PEFT, OF_DIFFUSERS))


def local_folder(source: str) -> Path:
    """A folder as it is, or that of a model on the hub."""
    if Path(source).is_dir():
        return Path(source)
    if Path(source).exists():
        raise UsageError(f"{source} is a file: give the folder of a diffusers model (with unet/ and scheduler/)")
    nowhere = f"no model at {source!r}: give a diffusers folder (with unet/ and scheduler/) or a hub id"
    return downloaded(source, FILES, nowhere)


def downloaded(source: str, wanted: Sequence[str], nowhere: str) -> Path:
    """The folder of what is `wanted` of a repository on the hub; `nowhere` is what to say if there is none."""
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise UsageError(nowhere)
    try:
        return Path(snapshot_download(source, allow_patterns=[*wanted], ignore_patterns=VARIANTS))
    except (OSError, ValueError) as error:
        raise UsageError(f"{nowhere} (the hub: {str(error).splitlines()[0]})") from error


@contextmanager
def naming_the_model(source: str) -> Iterator[None]:
    """Turn what loading a damaged model raises into one line."""
    try:
        yield
    except (OSError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"cannot load the model {source!r}: it is damaged ({reason[:300]})") from error


def whole_weights(kind: Any, folder: Path, source: str, **settings: Any) -> Any:
    """A network of diffusers or transformers; what is missing they would fill with random numbers."""
    if not settings:
        settings = {"low_cpu_mem_usage": False}
    network, found = kind.from_pretrained(folder, use_safetensors=True, output_loading_info=True, **settings)
    if missing := sorted(name for name in found["missing_keys"] if not name.endswith("position_ids")):
        raise UsageError(
            f"cannot load the model {source!r}: its weights lack {missing[0]}, which its config.json needs"
        )
    return network


def read_config(folder: Path, name: Path, source: str) -> dict[str, Any]:
    if not (folder / name).is_file():
        raise UsageError(f"{source} is not a diffusers model: it has no {name}")
    try:
        return dict(json.loads((folder / name).read_text()))
    except (ValueError, TypeError) as error:
        raise UsageError(f"{folder / name} is not a JSON object: {error}") from error
