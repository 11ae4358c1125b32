"""Stable Diffusion 1 and 2: a U-Net on latents that takes a prompt, fine-tuned as a whole or by a LoRA.

    W x  becomes  W x + (α / r) B A x        A [r, in] and B [out, r] are trained, W is frozen

A pipeline is a folder in the layout of diffusers. A LoRA is a folder or file in the format of diffusers or peft; one
that dtrak trained names its pipeline and its prompts in dtrak.json.
"""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.loaders import StableDiffusionLoraLoaderMixin
from diffusers.utils import convert_state_dict_to_diffusers
from peft import LoraConfig, get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict
from transformers import CLIPTextModel, CLIPTokenizer
from transformers.utils import logging

from dtrak.errors import DtrakError, UsageError
from dtrak.files import whole_folder, write_json
from dtrak.models.autoencoder import Autoencoder
from dtrak.models.diffusion import LORA, DiffusionModel
from dtrak.models.pipelines import (
    DIFFUSERS_LORA_FILES,
    LORA_DESCRIPTION,
    PEFT_CONFIG,
    PEFT_LORA_FILES,
    check_files,
    check_kind,
    downloaded,
    load_errors,
    local_configs,
    local_folder,
    read_config,
    whole_weights,
)
from dtrak.models.prompts import Prompts
from dtrak.models.settings import LoRA
from dtrak.models.text_encoders import ClipText
from dtrak.progress import say

logging.disable_progress_bar()  # loading is too short for a bar

ADAPTER = "default"  # peft's name of a LoRA
OTHER_SIZE = re.compile(  # torch's words for the first weight of another size
    r"size mismatch for (\S+?)(?:\.default)?\.weight: .*?torch\.Size\(\[([\d, ]+)\]\).*?torch\.Size\(\[([\d, ]+)\]\)"
)


def new(base: str, lora: LoRA, template: str, shape: tuple[int, int, int], source: str) -> DiffusionModel:
    """Load a pipeline for images of `shape` (C, H, W), with a new LoRA drawn from torch's global generator."""
    model = load(local_folder(base), base, template=template).fitted_to(shape)
    add_lora(model.network, lora, source)
    model.network.eval()
    return replace(model, source=source, base=full_name(base))


def check(base: str, lora: LoRA, shape: tuple[int, int, int], images: str, source: str) -> None:
    """Refuse what `new` would refuse, using only the settings of the pipeline's parts; no weights are read.

    `images` names the source of the images of `shape`. If the settings cannot be read, nothing is refused.
    """
    configs = local_configs(base)
    if configs is None:
        return
    check_kind(configs, base)
    with load_errors(base):
        scheduler = DDPMScheduler.from_pretrained(configs / "scheduler")
        with torch.device("meta"):
            unet = UNet2DConditionModel.from_config(UNet2DConditionModel.load_config(configs / "unet"))
            vae = AutoencoderKL.from_config(AutoencoderKL.load_config(configs / "vae"))
            add_lora(unet, lora, source)
    model = DiffusionModel(unet, scheduler, _shape_of(unet), source, Autoencoder(vae))
    model.fitted_to(shape).check_fits(shape, images)


def add_lora(unet: UNet2DConditionModel, lora: LoRA, source: str) -> None:
    """Freeze a U-Net and add a new LoRA to it."""
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=[*lora.targets],
        init_lora_weights="gaussian",
    )
    try:
        unet.requires_grad_(False).add_adapter(config, ADAPTER)
    except ValueError:
        names = ", ".join(lora.targets)
        raise UsageError(f"{source}: model.lora.targets: the U-Net has no layers called {names}") from None


def save(model: DiffusionModel, folder: Path) -> None:
    """Write the LoRA in the format of diffusers, which `pipeline.load_lora_weights(folder)` opens."""
    assert model.prompts is not None
    unet: UNet2DConditionModel = model.network
    config = unet.peft_config[ADAPTER]
    layers = convert_state_dict_to_diffusers(get_peft_model_state_dict(unet, adapter_name=ADAPTER))
    about = {
        "base": model.base,
        "prompt": model.prompts.template,
        "lora": {"rank": config.r, "alpha": config.lora_alpha, "dropout": config.lora_dropout},
    }
    with whole_folder(folder) as temporary:
        StableDiffusionLoraLoaderMixin.save_lora_weights(
            temporary,
            unet_lora_layers=layers,
            safe_serialization=True,
            # diffusers would apply the dropout when it draws pictures
            unet_lora_adapter_metadata=config.to_dict() | {"lora_dropout": 0.0},
        )
        write_json(temporary / LORA_DESCRIPTION, about)


def load(folder: Path, source: str, lora: str | None = None, template: str | None = None) -> DiffusionModel:
    """Load a pipeline's folder, with a LoRA if one is given; `source` is what the user typed."""
    check_kind(folder, source)
    check_files(folder)
    with load_errors(source):
        unet = whole_weights(UNet2DConditionModel, folder / "unet", source)
        vae = whole_weights(AutoencoderKL, folder / "vae", source)
        encoder = whole_weights(CLIPTextModel, folder / "text_encoder", source)
        tokenizer = CLIPTokenizer.from_pretrained(folder / "tokenizer")
        scheduler = DDPMScheduler.from_pretrained(folder / "scheduler", clip_sample=False)  # latents may be beyond ±1
    for network in (vae, encoder):
        network.requires_grad_(False).eval()
    if lora is not None:
        unet.requires_grad_(False)
        _load_lora_weights(unet, encoder, lora, source)
    unet.eval()
    return DiffusionModel(
        unet,
        scheduler,
        _shape_of(unet),
        source if lora is None else lora,
        Autoencoder(vae),
        Prompts(ClipText(tokenizer, encoder), template),
        source if lora is not None else None,
        family="stable-diffusion",
    )


def _shape_of(unet: UNet2DConditionModel) -> tuple[int, int, int]:
    """Return the shape (C, H, W) of the latents that a U-Net was made for."""
    size = unet.config.sample_size
    height, width = (size, size) if isinstance(size, int) else size
    return unet.config.in_channels, height, width


def lora_settings(unet: UNet2DConditionModel) -> dict[str, Any]:
    """Return the settings of a U-Net's LoRA, and its rank at each layer."""
    config = unet.peft_config[ADAPTER]
    ranks = {name.partition(".lora_A")[0]: len(value) for name, value in unet.named_parameters() if ".lora_A" in name}
    return {"lora": {"rank": config.r, "alpha": config.lora_alpha, "rank at": ranks}}


def new_lora_settings(lora: LoRA, unet: UNet2DConditionModel, source: str) -> dict[str, Any]:
    """Return the `lora_settings` that a new LoRA on such a U-Net would have."""
    with torch.device("meta"):
        built = UNet2DConditionModel.from_config(unet.config)
        add_lora(built, lora, source)
    return lora_settings(built)


def load_lora(folder: Path, template: str | None = None) -> DiffusionModel:
    """Load a LoRA that names its pipeline, together with the pipeline, which may be a folder relative to the LoRA's."""
    base = None
    if (folder / LORA_DESCRIPTION).exists():
        about = read_config(folder, Path(LORA_DESCRIPTION), str(folder))
        base, template = about.get("base"), template or about.get("prompt")
    elif (folder / PEFT_CONFIG).exists():
        base = read_config(folder, Path(PEFT_CONFIG), str(folder)).get("base_model_name_or_path")
    if not base:
        raise UsageError(
            f"{folder} is a LoRA that does not name its pipeline: give the pipeline as the model, and this as its LoRA"
        )
    if (folder / base).is_dir():  # relative to the LoRA, so that both can move together
        base = str((folder / base).resolve())
    return load(local_folder(base), base, str(folder), template)


def _load_lora_weights(unet: UNet2DConditionModel, encoder: CLIPTextModel, lora: str, source: str) -> None:
    """Load a LoRA's weights into the networks, from a folder or file in the format of diffusers or peft."""
    path = _local_lora(lora)
    check_files(path)
    try:
        if (path / PEFT_CONFIG).exists():
            _load_peft_weights(unet, path)
            return
        weights, alphas, about = StableDiffusionLoraLoaderMixin.lora_state_dict(
            str(path), return_lora_metadata=True, **_file_name(path)
        )
        if not weights or any("lora" not in name for name in weights):
            raise UsageError(f"{lora} holds no LoRA of a Stable Diffusion pipeline")
        parts = {"adapter_name": ADAPTER, "network_alphas": alphas, "metadata": about}
        StableDiffusionLoraLoaderMixin.load_lora_into_unet(weights, unet=unet, **parts)
        if any(name.startswith("text_encoder.") for name in weights):
            StableDiffusionLoraLoaderMixin.load_lora_into_text_encoder(
                weights, text_encoder=encoder, prefix="text_encoder", **parts
            )
            say(f"The LoRA {lora} also changes the text encoder: prompts are encoded with it, but scores leave it out")
    except DtrakError:
        raise
    except Exception as error:  # damaged files, and pickles that hold more than tensors, raise errors of many kinds
        reason = " ".join(str(error).split()) or type(error).__name__
        if other := OTHER_SIZE.search(reason):
            layer, found, wanted = other.groups()
            reason = f"its {layer} is [{found}], but must be [{wanted}]; it was made for another base model"
        raise UsageError(f"the LoRA {lora!r} does not fit {source!r}: {reason[:300]}") from error
    if not any(LORA in name for name, _ in unet.named_parameters()):
        raise UsageError(f"the LoRA {lora!r} has nothing for the U-Net of {source!r}")


def _local_lora(lora: str) -> Path:
    """Return the folder or file of a LoRA; for a file of peft its folder, which also holds its settings."""
    path = Path(lora)
    if os.path.isfile(path) and (path.parent / PEFT_CONFIG).exists():
        return path.parent
    if os.path.isfile(path) or os.path.isdir(path):
        return path
    not_found = f"no LoRA at {lora!r}: give a folder, a .safetensors file or a hub id"
    return downloaded(lora, ["*.json", "*.safetensors", *DIFFUSERS_LORA_FILES, *PEFT_LORA_FILES], not_found)


def _file_name(path: Path) -> dict[str, str]:
    """Return the argument that names the file of a LoRA in a folder: the usual file, or the only one."""
    if not path.is_dir():
        return {}
    usual = [name for name in DIFFUSERS_LORA_FILES if (path / name).exists()]
    names = usual[:1] or sorted(file.name for file in path.glob("*.safetensors"))
    if len(names) != 1:
        raise UsageError(f"{path} holds {len(names)} .safetensors files: give the one with the LoRA")
    return {"weight_name": names[0]}


def _load_peft_weights(unet: UNet2DConditionModel, folder: Path) -> None:
    """Load a U-Net's LoRA that peft's PeftModel.save_pretrained has written."""
    unet.add_adapter(LoraConfig.from_pretrained(str(folder)), ADAPTER)
    prefix = "base_model.model."
    weights = {name.removeprefix(prefix): value for name, value in load_peft_weights(str(folder), "cpu").items()}
    result = set_peft_model_state_dict(unet, weights, adapter_name=ADAPTER)
    missing = [name for name in result.missing_keys if LORA in name]
    if missing or result.unexpected_keys:
        raise ValueError(f"it lacks {missing[0]}" if missing else f"it has {result.unexpected_keys[0]}")


def full_name(base: str) -> str:
    """Return a name of the pipeline that is valid in any working folder."""
    return str(Path(base).resolve()) if os.path.exists(base) else base
