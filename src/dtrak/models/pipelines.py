"""Models of diffusers: find their folders on the disk or the hub, check them, and open them part by part.

Weights are read from safetensors files, if there are any. Else they are read from pickle files, of which torch reads
only tensors, so that no code in them is run; else from files in float16. The file model_index.json names the class of
every part, and strangers write it: only classes that a family knows are opened.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import partial
from inspect import isclass, signature
from pathlib import Path
from typing import Any, NoReturn

import torch

from dtrak.checks import MOST, shortened
from dtrak.errors import DtrakError, UsageError
from dtrak.fingerprints import Facts, of_file
from dtrak.models.schedulers import open_scheduler

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
TEXT = ("text_encoder", "tokenizer")  # the names of parts that encode prompts begin with one of these
LARGE = 1 << 30  # bytes of text encoders that are not kept in memory
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MOST_BYTES, MOST_LAYERS = 1 << 24, 1000  # of a file of settings, and of a network


# Folders


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
        return downloaded(source, [INDEX, "*/config.json", "*/scheduler_config.json"], "")
    except UsageError:
        return None


def downloaded(source: str, wanted: Sequence[str], not_found: str) -> Path:
    """Download the `wanted` files of a repository on the hub, and return their folder; an error says `not_found`."""
    from huggingface_hub import snapshot_download

    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise UsageError(not_found)
    try:
        return Path(snapshot_download(source, allow_patterns=[*wanted]))
    except (OSError, ValueError) as error:
        raise UsageError(f"{not_found} (the hub: {str(error).splitlines()[0]})") from error


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


# Checks


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


def refuse_pipeline(source: str, kind: str | None, supported: Sequence[str]) -> NoReturn:
    """Refuse a pipeline of another class: its parts would be put together wrongly."""
    raise UsageError(
        f"{source} is a {kind}: {', '.join(supported)} are supported; wrap the network of another pipeline in "
        "dtrak.DiffusionModel"
    )


def read_config(folder: Path, name: str, source: str, otherwise: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Read a JSON file of a model's folder; if there is none, return what is given for that, or refuse the model."""
    path = folder / name
    if not path.is_file():
        if otherwise is not None:
            return dict(otherwise)
        raise UsageError(f"{source} is not a diffusers model: it has no {name}")
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
        return dict(json.loads(path.read_text()))
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"{path} is not a JSON object: {error}") from error


def network_config(folder: Path, part: str, source: str) -> dict[str, Any]:
    """Read the settings of a network; refuse one of so many layers that it would take hours to build."""
    config = read_config(folder, f"{part}/config.json", source)
    for name, value in config.items():
        entries = value if isinstance(value, list) else [value]
        is_deep = "layers" in name and any(isinstance(one, int) and one > MOST_LAYERS for one in entries)
        if is_deep or len(entries) > MOST_LAYERS:
            raise UsageError(f"{folder / part / 'config.json'}: {name} is {shortened(value)}: no network is so deep")
    return config


def sides_of(config: Mapping[str, Any], source: str) -> tuple[int, int]:
    """Return the height and width of what a network was made for."""
    size = config.get("sample_size")
    match size if isinstance(size, list | tuple) else (size, size):
        case int(height), int(width) if 0 < height <= MOST["size"] and 0 < width <= MOST["size"]:
            return height, width
    raise UsageError(
        f"{source}: the config.json of its network does not give the sample_size of its images as one or two whole "
        f"numbers (it says {shortened(size)})"
    )


def pipeline_class(folder: Path, source: str) -> str | None:
    """Return the name of the class of the pipeline in a folder; None if the folder does not tell."""
    return str(read_config(folder, INDEX, source).get("_class_name")) if (folder / INDEX).exists() else None


# Parts


def parts_of(folder: Path, source: str, family: Any) -> dict[str, Any]:
    """Return the class of each part of the pipeline in a folder that is needed; refuse those that no model has.

    A folder without model_index.json has the family's `usual` parts. The class of a scheduler is checked when it is
    opened.
    """
    import diffusers
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()  # loading is too short for a bar
    # Some pipelines import processors of pictures, which nothing here uses; a warning says that torchvision is missing.
    logging.get_logger("transformers.utils.import_utils").setLevel(logging.ERROR)
    parts: dict[str, Any] = {}
    for name, value in read_config(folder, INDEX, source, family.usual).items():
        if not isinstance(value, list | tuple) or len(value) != 2 or None in value or name in UNUSED:
            continue
        library, kind = map(str, value)
        found = getattr(transformers if library == "transformers" else diffusers, kind, None)
        if name == "scheduler":
            parts[name] = found
        elif name.startswith("tokenizer"):
            is_known = isclass(found) and issubclass(found, transformers.PreTrainedTokenizerBase)
            parts[name] = found if is_known else transformers.AutoTokenizer
        elif kind in family.classes and isclass(found):
            parts[name] = found
        else:
            raise UsageError(
                f"{source}: its {name} is a {kind} of {library}, which is no part of a {family.title} pipeline"
            )
    return parts


def open_pipeline(
    kind: Any, folder: Path, source: str, parts: Mapping[str, Any], precision: str, text: bool | None = None
) -> Any:
    """Open a pipeline of the class `kind`, in eval mode; with `text`, only its text encoders, or all but these."""
    check_files(folder)
    wanted = {name: one for name, one in parts.items() if text is None or name.startswith(TEXT) == text}
    with load_errors(source):
        opened = {name: _open(name, one, folder, source, PRECISIONS[precision]) for name, one in wanted.items()}
        # What is not given is None, and other settings are those of the folder.
        settings = read_config(folder, INDEX, source, {})
        takes = {name: one for name, one in signature(kind.__init__).parameters.items() if name != "self"}
        arguments = {name: None if one.default is one.empty else one.default for name, one in takes.items()}
        arguments |= {name: one for name, one in settings.items() if name in takes and not isinstance(one, list)}
        arguments |= {"requires_safety_checker": False} if "requires_safety_checker" in takes else {}
        return kind(**arguments | {name: one for name, one in opened.items() if name in takes})


def _open(name: str, kind: Any, folder: Path, source: str, precision: torch.dtype) -> Any:
    if name == "scheduler":
        return open_scheduler(folder / name, read_config(folder, f"{name}/scheduler_config.json", source), source)
    if name.startswith("tokenizer"):
        return kind.from_pretrained(folder / name, trust_remote_code=False)
    # Autoencoders overflow in half precision.
    return whole_weights(kind, folder, name, source, torch.float32 if name.startswith(("vae", "vqvae")) else precision)


def whole_weights(kind: Any, folder: Path, part: str, source: str, precision: torch.dtype = torch.float32) -> Any:
    """Load a network of diffusers or transformers; refuse missing weights, which they would make up."""
    network_config(folder, part, source)
    form = weight_format(folder / part)
    if form is None:
        raise UsageError(f"{source} has no weights: {(folder / part).name}/ has neither .safetensors nor .bin")
    variant, ending = form
    network, found = kind.from_pretrained(
        folder / part,
        dtype=precision,
        variant=variant,
        use_safetensors=ending == "safetensors",
        output_loading_info=True,
    )
    if kind.__module__.startswith("diffusers.") and (unused := sorted(found["unexpected_keys"])):
        raise UsageError(
            f"cannot load the model {source!r}: its weights have {unused[0]}, for which its config.json has no place"
        )
    if missing := sorted(name for name in found["missing_keys"] if not name.endswith("position_ids")):
        raise UsageError(
            f"cannot load the model {source!r}: its weights lack {missing[0]}, which its config.json needs"
        )
    return network.eval()


def text_loader(
    kind: Any, folder: Path, source: str, parts: Mapping[str, Any], precision: str
) -> tuple[Callable[[], Any], Callable[[], Facts] | None]:
    """Return a function that opens the text encoders of a pipeline; for large ones also one that tells their facts."""
    files = [file for name in parts if name.startswith(TEXT) for file in sorted((folder / name).glob("*"))]
    files = [file for file in files if file.is_file()]

    def stored() -> Facts:
        return {f"{file.parent.name}/{file.name}": of_file(file) for file in files} | {"precision": precision}

    is_large = sum(file.stat().st_size for file in files) > LARGE
    return partial(open_pipeline, kind, folder, source, parts, precision, True), stored if is_large else None


def on_meta(configs: Path, source: str, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Make the networks and the scheduler of a pipeline from their settings alone, on the current device."""
    made: dict[str, Any] = {}
    with load_errors(source):
        for name, kind in parts.items():
            if name == "scheduler":
                with torch.device("cpu"):  # some schedulers compute with the values of their tables
                    made[name] = _open(name, kind, configs, source, torch.float32)
            elif not name.startswith("tokenizer"):
                network_config(configs, name, source)
                is_text = kind.__module__.startswith("transformers.")
                made[name] = (
                    kind(kind.config_class.from_pretrained(configs / name))
                    if is_text
                    else kind.from_config(kind.load_config(configs / name))
                )
    return made
