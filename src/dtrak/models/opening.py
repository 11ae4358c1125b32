"""Open a pipeline of diffusers part by part: each part is checked, and large text encoders can wait.

The file model_index.json names the class of every part. Only classes of diffusers and transformers are opened.
"""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import isclass, signature
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from diffusers import ConfigMixin, ModelMixin, SchedulerMixin
from transformers import AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from dtrak.errors import UsageError
from dtrak.models.pipelines import INDEX, UNUSED, check_files, load_errors, read_config, whole_weights

logging.disable_progress_bar()  # loading is too short for a bar
# Some pipelines import processors of pictures, which nothing here uses; transformers warns that torchvision is missing.
logging.get_logger("transformers.utils.import_utils").setLevel(logging.ERROR)

LIBRARIES = {"diffusers": diffusers, "transformers": transformers}
TEXT = ("text_encoder", "tokenizer")  # the names of parts that encode prompts begin with one of these
LARGE = 1 << 30  # bytes of text encoders that are not kept in memory
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Parts = Mapping[str, tuple[str, str]]  # the library and the class of each part, by its name


def parts_of(folder: Path, source: str, usual: Parts) -> dict[str, tuple[str, str]]:
    """Return the parts of the pipeline in a folder; a folder without model_index.json has the `usual` ones."""
    if not (folder / INDEX).exists():
        return dict(usual)
    found = read_config(folder, Path(INDEX), source)
    parts = {name: value for name, value in found.items() if isinstance(value, list) and len(value) == 2}
    return {
        name: (str(library), str(kind))
        for name, (library, kind) in parts.items()
        if library is not None and kind is not None and name not in UNUSED
    }


def open_pipeline(
    kind: Any, folder: Path, source: str, parts: Parts, precision: str = "float32", text: bool | None = None
) -> Any:
    """Open a pipeline of the class `kind`, in eval mode; with `text`, only its text encoders, or all but these."""
    check_files(folder)
    wanted = {name: one for name, one in parts.items() if text is None or name.startswith(TEXT) == text}
    with load_errors(source):
        opened = {name: _open(name, *one, folder, source, PRECISIONS[precision]) for name, one in wanted.items()}
        return assembled(kind, opened, folder, source)


def assembled(kind: Any, parts: Mapping[str, Any], folder: Path | None = None, source: str = "") -> Any:
    """Put a pipeline together; parts that are not given are None, and other settings are read from the folder."""
    settings = read_config(folder, Path(INDEX), source) if folder is not None and (folder / INDEX).exists() else {}
    takes = signature(kind.__init__).parameters
    plain = {name: one for name, one in settings.items() if name in takes and not isinstance(one, list)}
    missing = {name: None for name in takes if name not in plain and name not in ("self", "args", "kwargs")}
    defaults = {name: one.default for name, one in takes.items() if one.default is not one.empty}
    if "requires_safety_checker" in takes:
        plain["requires_safety_checker"] = False
    return kind(**missing | defaults | plain | {name: one for name, one in parts.items() if name in takes})


def text_loader(kind: Any, folder: Path, source: str, parts: Parts, precision: str) -> tuple[Callable[[], Any], bool]:
    """Return a function that opens the text encoders of a pipeline, and whether they are large."""
    places = [folder / name for name in parts if name.startswith("text_encoder")]
    size = sum(file.stat().st_size for place in places if place.is_dir() for file in place.iterdir() if file.is_file())
    return partial(open_pipeline, kind, folder, source, parts, precision, True), size > LARGE


def _open(name: str, library: str, kind: str, folder: Path, source: str, precision: torch.dtype) -> Any:
    found: Any = getattr(LIBRARIES.get(library), kind, None)
    if name.startswith("tokenizer"):
        return (found or AutoTokenizer).from_pretrained(folder / name)
    if not _is_class(found):
        raise UsageError(f"{source}: its {name} is a {kind} of {library}, which neither diffusers nor transformers has")
    if issubclass(found, ModelMixin | PreTrainedModel):
        if not (folder / name / "config.json").is_file():
            raise UsageError(f"{source} is not a whole pipeline: it has no {name}/config.json")
        # Autoencoders overflow in half precision.
        exact = torch.float32 if name.startswith(("vae", "vqvae")) else precision
        return whole_weights(found, folder / name, source, exact).eval()
    if issubclass(found, SchedulerMixin | ConfigMixin):
        return found.from_pretrained(folder / name)
    raise UsageError(f"{source}: its {name} is a {kind}, which is no part of a supported pipeline")


def on_meta(configs: Path, source: str, parts: Parts) -> dict[str, Any]:
    """Make the networks and the scheduler of a pipeline from their settings alone, on the current device."""
    made: dict[str, Any] = {}
    with load_errors(source):
        for name, (library, cls) in parts.items():
            found: Any = getattr(LIBRARIES.get(library), cls, None)
            if not _is_class(found) or name.startswith("tokenizer"):
                continue
            if issubclass(found, PreTrainedModel):
                made[name] = found(found.config_class.from_pretrained(configs / name))
            elif issubclass(found, ModelMixin):
                made[name] = found.from_config(found.load_config(configs / name))
            elif issubclass(found, SchedulerMixin):
                with torch.device("cpu"):  # some schedulers compute with the values of their tables
                    made[name] = found.from_pretrained(configs / name)
    return made


def _is_class(found: Any) -> bool:
    return isclass(found)
