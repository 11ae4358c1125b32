"""Find the folders of diffusers' models, on the disk or the hub, and check them, with errors that name the model.

Weights are read from safetensors files, if there are any. Else they are read from pickle files, of which torch reads
only tensors, so that no code in them is run; else from files in float16.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NoReturn

import torch
from diffusers import ModelMixin
from huggingface_hub import snapshot_download

from dtrak.errors import DtrakError, UsageError
from dtrak.models.exploding import is_exploding

STEMS = ("diffusion_pytorch_model", "pytorch_model", "model")  # the names of weight files begin with one of these
# The files of a LoRA's weights in the formats of diffusers and peft, and its settings as peft and dtrak write them.
DIFFUSERS_LORA_FILES = ("pytorch_lora_weights.safetensors", "pytorch_lora_weights.bin")
PEFT_LORA_FILES = ("adapter_model.safetensors", "adapter_model.bin")
PEFT_CONFIG, LORA_DESCRIPTION = "adapter_config.json", "dtrak.json"
# The files that are downloaded before a model's weights.
FILES = ["*.json", "tokenizer*/*", *DIFFUSERS_LORA_FILES, *PEFT_LORA_FILES]
INDEX = "model_index.json"
UNUSED = ("safety_checker", "feature_extractor", "image_encoder")  # parts of pipelines that no computation needs
FLOAT16 = "fp16"
# The variant and the file extension of weights, in the order in which they are looked for.
WEIGHT_FORMATS = ((None, "safetensors"), (None, "bin"), (FLOAT16, "safetensors"), (FLOAT16, "bin"))


def is_lora(folder: Path) -> bool:
    """Tell whether a folder holds a LoRA."""
    return any((folder / name).exists() for name in (LORA_DESCRIPTION, PEFT_CONFIG, *DIFFUSERS_LORA_FILES))


def local_folder(source: str, check: Callable[[Path], object] = lambda folder: None) -> Path:
    """Return the folder of a model: `source` itself, or the folder to which it is downloaded from the hub.

    `check` is called before gigabytes are downloaded, with a folder that has everything but weights.
    """
    if os.path.isdir(source):
        return Path(source)
    if os.path.exists(source):
        raise UsageError(f"{source} is a file: give the folder of a diffusers model (with unet/ and scheduler/)")
    not_found = f"no model at {source!r}: give a diffusers folder (with unet/ and scheduler/) or a hub id"
    folder = downloaded(source, FILES, not_found)
    check(folder)
    networks = [path.parent.relative_to(folder) for path in (folder / "config.json", *folder.glob("*/config.json"))]
    networks = [part for part in networks if (folder / part / "config.json").exists() and str(part) not in UNUSED]
    for priority, form in enumerate(WEIGHT_FORMATS):  # a network that has weights in one format needs no later one
        missing = [part for part in networks if weight_format(folder / part) not in WEIGHT_FORMATS[:priority]]
        if missing:
            wanted = [str(Path(part, pattern)) for part in missing for pattern in _patterns(*form)]
            downloaded(source, wanted, not_found)
    return folder


def local_configs(source: str) -> Path | None:
    """Return a folder with the settings of a model's parts, without weights; None if they cannot be downloaded."""
    if os.path.isdir(source):
        return Path(source)
    try:
        return downloaded(source, ["model_index.json", "*/config.json", "*/scheduler_config.json"], "")
    except UsageError:
        return None


def weight_format(folder: Path) -> tuple[str | None, str] | None:
    """Return the first of `WEIGHT_FORMATS` in which a folder has a network's weights; None if it has none."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    for form in WEIGHT_FORMATS:
        if any(fnmatch(name, pattern) for name in names for pattern in _patterns(*form)):
            return form
    return None


def _patterns(variant: str | None, ending: str) -> list[str]:
    """Return patterns for the names of weight files: one file, or several numbered ones."""
    infix = "" if variant is None else f".{variant}"
    return [f"{stem}{infix}{numbers}.{ending}" for stem in STEMS for numbers in ("", "-*-of-*")]


def downloaded(source: str, wanted: Sequence[str], not_found: str) -> Path:
    """Download the `wanted` files of a repository on the hub, and return their folder; an error says `not_found`."""
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise UsageError(not_found)
    try:
        return Path(snapshot_download(source, allow_patterns=[*wanted]))
    except (OSError, ValueError) as error:
        raise UsageError(f"{not_found} (the hub: {str(error).splitlines()[0]})") from error


@contextmanager
def load_errors(source: str) -> Iterator[None]:
    """Turn any error of loading a model into one line that names the model."""
    try:
        yield
    except DtrakError:
        raise
    except Exception as error:  # each loader raises its own errors
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"cannot load the model {source!r}: it is damaged ({reason[:300]})") from error


def check_files(folder: Path) -> None:
    """Refuse a folder with pipes or devices, on which loaders would wait."""
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UsageError(f"{path} is a pipe or a device, not a file of a model")


def whole_weights(kind: Any, folder: Path, source: str, precision: torch.dtype = torch.float32) -> Any:
    """Load a network of diffusers or transformers; refuse missing weights, which they would make up."""
    form = weight_format(folder)
    if form is None:
        raise UsageError(f"{source} has no weights: {folder.name}/ has neither .safetensors nor .bin")
    variant, ending = form
    network, found = kind.from_pretrained(
        folder,
        dtype=precision,
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


def refuse_pipeline(source: str, kind: str | None, supported: Sequence[str]) -> NoReturn:
    """Refuse a pipeline of another class: its parts would be put together wrongly."""
    raise UsageError(
        f"{source} is a {kind}: {', '.join(supported)} are supported; wrap the network of another pipeline in "
        "dtrak.DiffusionModel"
    )


def read_config(folder: Path, name: Path, source: str) -> dict[str, Any]:
    """Read a JSON file of a model's folder."""
    if not (folder / name).is_file():
        raise UsageError(f"{source} is not a diffusers model: it has no {name}")
    try:
        return dict(json.loads((folder / name).read_text()))
    except (ValueError, TypeError) as error:
        raise UsageError(f"{folder / name} is not a JSON object: {error}") from error


def pipeline_class(folder: Path, source: str) -> str | None:
    """Return the name of the class of the pipeline in a folder; None if the folder does not tell."""
    if not (folder / INDEX).exists():
        return None
    return str(read_config(folder, Path(INDEX), source).get("_class_name"))


def check_schedule(folder: Path, part: Path, source: str) -> None:
    """Refuse a schedule of an unknown noise process: diffusers' DDPMScheduler would use its own defaults instead."""
    schedule = read_config(folder, part / "scheduler_config.json", source)
    kind = schedule.get("_class_name", "DDPMScheduler")
    is_known = "FlowMatch" in str(kind) or schedule.get("use_flow_sigmas") or is_exploding(kind)
    has_betas = kind == "DDPMScheduler" or schedule.get("beta_schedule") or schedule.get("trained_betas")
    if not is_known and not has_betas:
        raise UsageError(
            f"{source}: its schedule is a {kind}, whose noise process is not supported: wrap its network in "
            "dtrak.DiffusionModel, with a scheduler that adds noise as the training did"
        )
