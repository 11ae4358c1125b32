"""Stable Diffusion 1 and 2: a U-Net on latents that is told a prompt; fine-tuned as a whole, or by LoRA.

    W x  becomes  W x + (α / r) B A x        A [r, in] and B [out, r] learn, W stays

A pipeline lies in diffusers' own layout. A LoRA lies in a folder or file as diffusers or peft saves it; one that was
trained here says in dtrak.json which pipeline it belongs to and what its prompts were.
"""

import os
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
    ABOUT,
    ADAPTERS,
    OF_DIFFUSERS,
    OF_PEFT,
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

logging.disable_progress_bar()  # they load in less time than a bar takes to draw

ADAPTER = "default"  # the name that peft gives it


def new(base: str, lora: LoRA, template: str, shape: tuple[int, int, int], source: str) -> DiffusionModel:
    """A pipeline with a new LoRA for images of `shape` (C, H, W), from torch's global generator."""
    model = load(local_folder(base), base, template=template).fitted_to(shape)
    add_lora(model.network, lora, source)
    model.network.eval()
    return replace(model, source=source, base=full_name(base))


def check(base: str, lora: LoRA, shape: tuple[int, int, int], images: str, source: str) -> None:
    """Refuse what `new` would refuse, from what describes the pipeline's parts; no weights are read.

    `images` is where the images of `shape` come from. A pipeline that is out of reach is left to `new`.
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
    """Freeze a U-Net and give it a new LoRA."""
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
    """Write the LoRA as diffusers does, so that `pipeline.load_lora_weights(folder)` opens it."""
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
            # diffusers would leave dropout on when it draws
            unet_lora_adapter_metadata=config.to_dict() | {"lora_dropout": 0.0},
        )
        write_json(temporary / ABOUT, about)


def load(folder: Path, source: str, lora: str | None = None, template: str | None = None) -> DiffusionModel:
    """Open a pipeline's folder, with a LoRA if one is given; `source` is what the user typed."""
    check_kind(folder, source)
    check_files(folder)
    with load_errors(source):
        unet = whole_weights(UNet2DConditionModel, folder / "unet", source)
        vae = whole_weights(AutoencoderKL, folder / "vae", source)
        encoder = whole_weights(CLIPTextModel, folder / "text_encoder", source)
        tokenizer = CLIPTokenizer.from_pretrained(folder / "tokenizer")
        scheduler = DDPMScheduler.from_pretrained(folder / "scheduler", clip_sample=False)  # latents go beyond ±1
    for network in (vae, encoder):
        network.requires_grad_(False).eval()
    if lora is not None:
        unet.requires_grad_(False)
        _add_lora(unet, encoder, lora, source)
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
    """(C, H, W) of the latents that a U-Net was made for."""
    size = unet.config.sample_size
    height, width = (size, size) if isinstance(size, int) else size
    return unet.config.in_channels, height, width


def lora_of(unet: UNet2DConditionModel) -> dict[str, Any]:
    """The settings of a U-Net's LoRA, and the rank that it has at each of its layers."""
    config = unet.peft_config[ADAPTER]
    ranks = {name.partition(".lora_A")[0]: len(value) for name, value in unet.named_parameters() if ".lora_A" in name}
    return {"lora": {"rank": config.r, "alpha": config.lora_alpha, "rank at": ranks}}


def lora_made_of(lora: LoRA, unet: UNet2DConditionModel, source: str) -> dict[str, Any]:
    """What `lora_of` says of a new LoRA on such a U-Net."""
    with torch.device("meta"):
        built = UNet2DConditionModel.from_config(unet.config)
        add_lora(built, lora, source)
    return lora_of(built)


def load_lora(folder: Path, template: str | None = None) -> DiffusionModel:
    """Open a LoRA that says to which pipeline it belongs."""
    base = None
    if (folder / ABOUT).exists():
        about = read_config(folder, Path(ABOUT), str(folder))
        base, template = about.get("base"), template or about.get("prompt")
    elif (folder / OF_PEFT).exists():
        base = read_config(folder, Path(OF_PEFT), str(folder)).get("base_model_name_or_path")
    if not base:
        raise UsageError(
            f"{folder} is a LoRA that does not name its pipeline: give the pipeline as the model, and this as its LoRA"
        )
    return load(local_folder(base), base, str(folder), template)


def _add_lora(unet: UNet2DConditionModel, encoder: CLIPTextModel, lora: str, source: str) -> None:
    """Give the networks the weights that lie in a folder or file, in the formats of diffusers or of peft."""
    path = _local_lora(lora)
    check_files(path)
    try:
        if (path / OF_PEFT).exists():
            _add_of_peft(unet, path)
            return
        weights, alphas, about = StableDiffusionLoraLoaderMixin.lora_state_dict(
            str(path), return_lora_metadata=True, **_named(path)
        )
        if not weights or any("lora" not in name for name in weights):
            raise UsageError(f"{lora} holds no LoRA of a Stable Diffusion pipeline")
        parts = {"adapter_name": ADAPTER, "network_alphas": alphas, "metadata": about}
        StableDiffusionLoraLoaderMixin.load_lora_into_unet(weights, unet=unet, **parts)
        if any(name.startswith("text_encoder.") for name in weights):
            StableDiffusionLoraLoaderMixin.load_lora_into_text_encoder(
                weights, text_encoder=encoder, prefix="text_encoder", **parts
            )
    except DtrakError:
        raise
    except Exception as error:  # on damaged files, and on pickles that hold more than numbers, each its own kind
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"the LoRA {lora!r} does not fit {source!r}: {reason[:300]}") from error
    if not any(LORA in name for name, _ in unet.named_parameters()):
        raise UsageError(f"the LoRA {lora!r} has nothing for the U-Net of {source!r}")


def _local_lora(lora: str) -> Path:
    """The folder or file of a LoRA; peft's weights are named by their folder, which says what they are."""
    path = Path(lora)
    if os.path.isfile(path) and (path.parent / OF_PEFT).exists():
        return path.parent
    if os.path.isfile(path) or os.path.isdir(path):
        return path
    nowhere = f"no LoRA at {lora!r}: give a folder, a .safetensors file or a hub id"
    return downloaded(lora, ["*.json", "*.safetensors", *OF_DIFFUSERS, *ADAPTERS], nowhere)


def _named(path: Path) -> dict[str, str]:
    """The file of a LoRA in a folder: by its usual name, or the only one that there is."""
    if not path.is_dir():
        return {}
    usual = [name for name in OF_DIFFUSERS if (path / name).exists()]
    names = usual[:1] or sorted(file.name for file in path.glob("*.safetensors"))
    if len(names) != 1:
        raise UsageError(f"{path} holds {len(names)} .safetensors files: give the one with the LoRA")
    return {"weight_name": names[0]}


def _add_of_peft(unet: UNet2DConditionModel, folder: Path) -> None:
    """What peft's PeftModel.save_pretrained writes for a U-Net."""
    unet.add_adapter(LoraConfig.from_pretrained(str(folder)), ADAPTER)
    prefix = "base_model.model."
    weights = {name.removeprefix(prefix): value for name, value in load_peft_weights(str(folder), "cpu").items()}
    outcome = set_peft_model_state_dict(unet, weights, adapter_name=ADAPTER)
    missing = [name for name in outcome.missing_keys if LORA in name]
    if missing or outcome.unexpected_keys:
        raise ValueError(f"it lacks {missing[0]}" if missing else f"it has {outcome.unexpected_keys[0]}")


def full_name(base: str) -> str:
    """What names the pipeline from anywhere."""
    return str(Path(base).resolve()) if os.path.exists(base) else base
