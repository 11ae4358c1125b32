"""LoRAs: trained updates of low rank for layers of a frozen network.

    W x  becomes  W x + (α / r) B A x        A [r, in] and B [out, r] are trained, W is frozen

A LoRA is a folder or file in the format of diffusers, of peft, or of kohya's scripts where diffusers converts it. One
that dtrak trained names its pipeline and its prompts in dtrak.json.
"""

import os
import re
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dtrak.errors import DtrakError, UsageError
from dtrak.files import whole_folder, write_json
from dtrak.models.diffusion import LORA, DiffusionModel
from dtrak.models.pipelines import (
    DIFFUSERS_LORA_FILES,
    LORA_DESCRIPTION,
    PEFT_CONFIG,
    PEFT_LORA_FILES,
    check_files,
    downloaded,
    read_config,
)
from dtrak.models.prompts import networks_of
from dtrak.progress import say

ADAPTER, PREFIX = "default", "base_model.model."  # peft's name of a LoRA, and of the network in its files
OTHER_SIZE = re.compile(  # torch's words for the first weight of another size
    r"size mismatch for (\S+?)(?:\.default)?\.weight: .*?torch\.Size\(\[([\d, ]+)\]\).*?torch\.Size\(\[([\d, ]+)\]\)"
)


def add_lora(network: nn.Module, lora: Any, source: str) -> None:
    """Freeze a network and add a new LoRA to it, in float32; `lora` is that section of a recipe."""
    from peft import LoraConfig

    network.requires_grad_(False)
    try:
        sizes = {"r": lora.rank, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout}
        _add_adapter(network, LoraConfig(**sizes, target_modules=[*lora.targets], init_lora_weights="gaussian"))
    except ValueError:
        names = ", ".join(lora.targets)
        raise UsageError(f"{source}: model.lora.targets: the network has no layers called {names}") from None
    _in_float32(network)


def _in_float32(network: nn.Module) -> None:
    """Turn the weights of a LoRA into float32, whatever the precision of the frozen weights is."""
    for name, value in network.named_parameters():
        if LORA in name:
            value.data = value.data.float()


def _add_adapter(network: Any, config: Any) -> None:
    """Add an adapter; some networks of diffusers have no function of their own for it."""
    from peft import inject_adapter_in_model

    if hasattr(network, "add_adapter"):
        network.add_adapter(config, ADAPTER)
    else:
        inject_adapter_in_model(config, network, ADAPTER)


def config_of(network: Any) -> Any:
    """Return peft's settings of a network's LoRA."""
    return network.peft_config[ADAPTER]


def lora_settings(network: nn.Module) -> dict[str, Any]:
    """Return the settings of a network's LoRA, and its rank at each layer."""
    config = config_of(network)
    ranks = {
        name.partition(".lora_A")[0]: len(value) for name, value in network.named_parameters() if ".lora_A" in name
    }
    return {"lora": {"rank": config.r, "alpha": config.lora_alpha, "rank at": ranks}}


def new_lora_settings(lora: Any, network: Any, source: str) -> dict[str, Any]:
    """Return the `lora_settings` that a new LoRA on such a network would have."""
    with torch.device("meta"):
        built = type(network).from_config(network.config)
        add_lora(built, lora, source)
    return lora_settings(built)


def save_lora(model: DiffusionModel, pipeline: Any, part: str, folder: Path) -> None:
    """Write the LoRA of `part` ("unet" or "transformer") of a pipeline.

    If the pipeline's class loads LoRAs, the format is that of diffusers, which `pipeline.load_lora_weights` opens.
    Else it is that of peft, which `PeftModel.from_pretrained` opens.
    """
    from diffusers.utils import convert_state_dict_to_diffusers
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    config = copy(config_of(model.network))
    config.target_modules = sorted(config.target_modules)  # a set has another order in every process
    state = get_peft_model_state_dict(model.network, adapter_name=ADAPTER)
    layers = {name: value.contiguous() for name, value in state.items()}
    about = {"rank": config.r, "alpha": config.lora_alpha, "dropout": config.lora_dropout}
    prompt = {} if model.prompts is None else {"prompt": model.prompts.template}
    with whole_folder(folder) as temporary:
        if hasattr(pipeline, "save_lora_weights"):
            of_part = {
                f"{part}_lora_layers": convert_state_dict_to_diffusers(layers) if part == "unet" else layers,
                # diffusers would apply the dropout when it draws pictures
                f"{part}_lora_adapter_metadata": config.to_dict() | {"lora_dropout": 0.0},
            }
            pipeline.save_lora_weights(temporary, safe_serialization=True, **of_part)
        else:
            config.save_pretrained(str(temporary))
            named = {f"{PREFIX}{name}": value for name, value in layers.items()}
            save_file(named, temporary / PEFT_LORA_FILES[0])
        write_json(temporary / LORA_DESCRIPTION, {"base": model.base, "lora": about, **prompt})


def described_lora(folder: Path) -> tuple[str, str | None]:
    """Return the pipeline that a LoRA's folder names, which may be relative to it, and the template of its prompts."""
    about = read_config(folder, LORA_DESCRIPTION, str(folder), {}) or read_config(folder, PEFT_CONFIG, str(folder), {})
    base = str(about.get("base") or about.get("base_model_name_or_path") or "")
    if not base:
        raise UsageError(
            f"{folder} is a LoRA that does not name its pipeline: give the pipeline as the model, and this as its LoRA"
        )
    if (folder / base).is_dir():  # relative to the LoRA, so that both can move together
        base = str((folder / base).resolve())
    return base, about.get("prompt")


def load_lora(network: nn.Module, lora: str, source: str, pipeline: Any = None) -> None:
    """Load a LoRA's weights into a network, and into the text encoders of its pipeline if it has some for them."""
    from peft import LoraConfig, load_peft_weights, set_peft_model_state_dict

    path = local_lora(lora)
    check_files(path)
    network.requires_grad_(False)
    try:
        if (path / PEFT_CONFIG).exists():
            _add_adapter(network, LoraConfig.from_pretrained(str(path)))
            weights = {name.removeprefix(PREFIX): value for name, value in load_peft_weights(str(path), "cpu").items()}
            result = set_peft_model_state_dict(network, weights, adapter_name=ADAPTER)
            missing = [name for name in result.missing_keys if LORA in name]
            if missing or result.unexpected_keys:
                raise ValueError(f"it lacks {missing[0]}" if missing else f"it has {result.unexpected_keys[0]}")
        elif hasattr(pipeline, "load_lora_weights"):
            name = _weights_in(path) if path.is_dir() else None
            pipeline.load_lora_weights(str(path), adapter_name=ADAPTER, **({"weight_name": name} if name else {}))
            if any(LORA in name for one in networks_of(pipeline).values() for name, _ in one.named_parameters()):
                say(f"The LoRA {lora} also changes text encoders: prompts are encoded with it, but scores leave it out")
        else:
            raise UsageError(f"the LoRA {lora!r} is not in peft's format (with {PEFT_CONFIG}), which {source} needs")
    except DtrakError:
        raise
    except Exception as error:  # damaged files, and pickles that hold more than tensors, raise errors of many kinds
        reason = " ".join(str(error).split()) or type(error).__name__
        if other := OTHER_SIZE.search(reason):
            layer, found, wanted = other.groups()
            reason = f"its {layer} is [{found}], but must be [{wanted}]; it was made for another base model"
        raise UsageError(f"the LoRA {lora!r} does not fit {source!r}: {reason[:300]}") from error
    if not any(LORA in name for name, _ in network.named_parameters()):
        raise UsageError(f"the LoRA {lora!r} has nothing for the network of {source!r}")
    _in_float32(network)


def _weights_in(folder: Path) -> str:
    """Return the name of the file of a LoRA in a folder: the usual one, or the only one."""
    usual = [name for name in DIFFUSERS_LORA_FILES if (folder / name).exists()]
    names = usual[:1] or sorted(file.name for file in folder.glob("*.safetensors"))
    if len(names) != 1:
        raise UsageError(f"{folder} holds {len(names)} .safetensors files: give the one with the LoRA")
    return names[0]


def touches_text(lora: str) -> bool:
    """Tell whether a LoRA has weights for text encoders as well."""
    from safetensors import SafetensorError, safe_open

    path = local_lora(lora)
    check_files(path)
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    if any(file.suffix != ".safetensors" for file in files) or not files:
        return True  # it cannot be told without reading a pickle
    try:
        with safe_open(files[0], "pt") as opened:
            return any(name.startswith(("text_encoder", "lora_te")) for name in opened.keys())  # noqa: SIM118
    except (OSError, SafetensorError):
        return False  # `load_lora` says what is wrong


def local_lora(lora: str) -> Path:
    """Return the folder or file of a LoRA; for a file of peft its folder, which also holds its settings."""
    path = Path(lora)
    if os.path.isfile(path) and (path.parent / PEFT_CONFIG).exists():
        return path.parent
    if os.path.isfile(path) or os.path.isdir(path):
        return path
    not_found = f"no LoRA at {lora!r}: give a folder, a .safetensors file or a hub id"
    return downloaded(lora, ["*.json", "*.safetensors", *DIFFUSERS_LORA_FILES, *PEFT_LORA_FILES], not_found)
