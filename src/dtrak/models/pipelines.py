"""Folders of diffusers' models: from the disk or the hub, and whole, with errors that name them.

Weights are read as safetensors where there are any; else as pickles of which torch opens numbers alone, so that nothing
in them is run; else from their halves, float16.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from diffusers import ModelMixin
from huggingface_hub import snapshot_download

from dtrak.errors import DtrakError, UsageError

NETWORKS = ("unet", "vae", "text_encoder", ".")  # the oldest models have theirs at the top
STEMS = ("diffusion_pytorch_model", "pytorch_model", "model")  # of diffusers' and transformers' weights
# How diffusers and peft call a LoRA's weights, and what peft and dtrak write about them.
OF_DIFFUSERS = ("pytorch_lora_weights.safetensors", "pytorch_lora_weights.bin")
ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
OF_PEFT, ABOUT = "adapter_config.json", "dtrak.json"
# What is downloaded of a model before its weights, and these in the order in which they are looked for.
FILES = ["*.json", "tokenizer/*.txt", *OF_DIFFUSERS, *ADAPTERS]
# What a model_index.json may call a model, by whether it has a text encoder; the others' parts work together otherwise.
UNCONDITIONAL, CONDITIONAL = ("DDPMPipeline", "DDIMPipeline"), ("StableDiffusionPipeline",)
# Settings of a U-Net that has to be told something beside a prompt.
OTHERWISE_TOLD = (
    "class_embed_type",
    "num_class_embeds",
    "addition_embed_type",
    "encoder_hid_dim_type",
    "time_cond_proj_dim",
)
HALVES = "fp16"
FORMS = ((None, "safetensors"), (None, "bin"), (HALVES, "safetensors"), (HALVES, "bin"))


def is_pipeline(folder: Path) -> bool:
    """Whether this is Stable Diffusion or a relative of it."""
    return (folder / "unet").is_dir() and (folder / "text_encoder").is_dir()


def is_lora(folder: Path) -> bool:
    return any((folder / name).exists() for name in (ABOUT, OF_PEFT, *OF_DIFFUSERS))


def local_folder(source: str) -> Path:
    """A folder as it is, or that of a model on the hub."""
    if os.path.isdir(source):
        return Path(source)
    if os.path.exists(source):
        raise UsageError(f"{source} is a file: give the folder of a diffusers model (with unet/ and scheduler/)")
    nowhere = f"no model at {source!r}: give a diffusers folder (with unet/ and scheduler/) or a hub id"
    folder = downloaded(source, FILES, nowhere)
    if is_pipeline(folder):  # other kinds are refused before gigabytes are on their way
        check_kind(folder, source)
    else:
        check_index(folder, source, UNCONDITIONAL)
    networks = [part for part in NETWORKS if (folder / part / "config.json").exists()]
    for place, form in enumerate(FORMS):  # what is there is not fetched again; what is half there is completed
        lacking = [part for part in networks if form_of(folder / part) not in FORMS[:place]]
        if lacking:
            wanted = [str(Path(part, pattern)) for part in lacking for pattern in _patterns(*form)]
            downloaded(source, wanted, nowhere)
    return folder


def local_configs(source: str) -> Path | None:
    """A folder with what describes a model's parts, its weights aside; None where that is out of reach."""
    if os.path.isdir(source):
        return Path(source)
    try:
        return downloaded(source, ["model_index.json", "*/config.json", "*/scheduler_config.json"], "")
    except UsageError:
        return None


def form_of(folder: Path) -> tuple[str | None, str] | None:
    """In which of the `FORMS` a network's weights lie here; None if there are none."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    for form in FORMS:
        if any(fnmatch(name, pattern) for name in names for pattern in _patterns(*form)):
            return form
    return None


def _patterns(variant: str | None, ending: str) -> list[str]:
    """The names of weights: in one file, or in several that are numbered."""
    own = "" if variant is None else f".{variant}"
    return [f"{stem}{own}{numbers}.{ending}" for stem in STEMS for numbers in ("", "-*-of-*")]


def downloaded(source: str, wanted: Sequence[str], nowhere: str) -> Path:
    """The folder of what is `wanted` of a repository on the hub; `nowhere` is what to say if there is none."""
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise UsageError(nowhere)
    try:
        return Path(snapshot_download(source, allow_patterns=[*wanted]))
    except (OSError, ValueError) as error:
        raise UsageError(f"{nowhere} (the hub: {str(error).splitlines()[0]})") from error


@contextmanager
def load_errors(source: str) -> Iterator[None]:
    """Turn what loading a damaged model raises into one line."""
    try:
        yield
    except DtrakError:
        raise
    except Exception as error:  # each loader raises its own kinds, and refuses pickles with others
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"cannot load the model {source!r}: it is damaged ({reason[:300]})") from error


def check_files(folder: Path) -> None:
    """Refuse a folder with pipes or devices, which loaders would wait for."""
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UsageError(f"{path} is a pipe or a device, not a file of a model")


def whole_weights(kind: Any, folder: Path, source: str) -> Any:
    """A network of diffusers or transformers, in float32; what is missing they would fill with random numbers."""
    form = form_of(folder)
    if form is None:
        raise UsageError(f"{source} has no weights: {folder.name}/ has neither .safetensors nor .bin")
    variant, ending = form
    network, found = kind.from_pretrained(
        folder,
        dtype=torch.float32,
        variant=variant,
        use_safetensors=ending == "safetensors",
        output_loading_info=True,
    )
    if issubclass(kind, ModelMixin) and (unused := sorted(found["unexpected_keys"])):
        raise UsageError(
            f"cannot load the model {source!r}: its weights have {unused[0]}, for which its config.json has no place"
        )
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


def check_index(folder: Path, source: str, supported: Sequence[str]) -> None:
    """Refuse a folder that calls itself another pipeline: its parts would be read, and put together wrongly."""
    index = Path("model_index.json")
    if not (folder / index).exists():
        return
    kind = read_config(folder, index, source).get("_class_name")
    if kind not in supported:
        raise UsageError(
            f"{source} is a {kind}: {', '.join((*UNCONDITIONAL, *CONDITIONAL))} are supported; of another pipeline, "
            "wrap the network in dtrak.DiffusionModel"
        )


def check_schedule(folder: Path, part: Path, source: str) -> None:
    """Refuse a schedule that is no list of β: of it, diffusers' DDPMScheduler would take its own instead."""
    schedule = read_config(folder, part / "scheduler_config.json", source)
    kind = schedule.get("_class_name", "DDPMScheduler")
    if kind != "DDPMScheduler" and not schedule.get("beta_schedule") and not schedule.get("trained_betas"):
        raise UsageError(
            f"{source}: its schedule is a {kind}, which adds noise otherwise than a DDPMScheduler: wrap its network in "
            "dtrak.DiffusionModel"
        )


def check_kind(folder: Path, source: str) -> None:
    """Say what is lacking or other than expected before diffusers stumbles over it."""
    check_index(folder, source, CONDITIONAL)
    unet = read_config(folder, Path("unet", "config.json"), source)
    if (kind := unet.get("_class_name")) != "UNet2DConditionModel":
        raise UsageError(f"{source}: its network is a {kind}, not the U-Net of Stable Diffusion")
    text = read_config(folder, Path("text_encoder", "config.json"), source)
    if (folder / "text_encoder_2").exists() or not str(text.get("model_type", "")).startswith("clip"):
        raise UsageError(f"{source}: only pipelines with one CLIP text encoder are supported: Stable Diffusion 1 and 2")
    check_schedule(folder, Path("scheduler"), source)
    for setting in OTHERWISE_TOLD:
        if unet.get(setting):
            raise UsageError(f"{source}: its U-Net is told more than prompts ({setting} is {unet[setting]!r})")
    before, after = (unet.get(f"{side}_channels", 4) for side in ("in", "out"))
    if before != after:
        raise UsageError(
            f"{source}: its U-Net maps {before} channels to {after}: pipelines for inpainting, depth or editing "
            "are not supported"
        )
