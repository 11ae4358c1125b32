"""How pictures are decoded, cropped and resized, through real files."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dtrak.images.image_files import png
from dtrak.images.images import load_images
from pictures_on_disk import everything, noise, refused, save_image, save_npz

# Transformations


def test_crop_comes_before_size(tmp_path: Path) -> None:
    pixels = noise(9, 12, 3)
    path = str(save_image(tmp_path / "a.png", pixels))
    np.testing.assert_array_equal(everything(load_images(path, crop=4))[0], pixels[2:6, 4:8])
    square = Image.fromarray(pixels[:, 1:10])
    expected = square.resize((4, 4), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(everything(load_images(path, size=4))[0], np.asarray(expected))
    expected = Image.fromarray(pixels[0:8, 2:10]).resize((3, 3), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(everything(load_images(path, crop=8, size=3))[0], np.asarray(expected))
    assert load_images(path, size=20).shape == (3, 20, 20)
    refused(lambda: load_images(path, crop=10), path, "12x9", "crop of 10")


def test_arrays_are_transformed_like_files(tmp_path: Path) -> None:
    pixels = noise(1, 9, 12, 3)
    archive = save_npz(tmp_path / "a.npz", images=pixels)
    file = str(save_image(tmp_path / "a.png", pixels[0]))
    options: dict[str, int] = {"crop": 8, "size": 5}
    np.testing.assert_array_equal(everything(load_images(archive, **options)), everything(load_images(file, **options)))
    refused(lambda: load_images("digits:train", crop=9), "digits:train, image 0", "8x8")


@pytest.mark.parametrize("options", [{"size": 0}, {"crop": -1}, {"channels": 2}, {"channels": 4}])
def test_impossible_options(options: dict[str, int]) -> None:
    ((name, value),) = options.items()
    refused(lambda: load_images("digits:train", **options), name, value)


def test_unequal_sizes_need_a_size(tmp_path: Path) -> None:
    save_image(tmp_path / "a.png", noise(4, 6))
    save_image(tmp_path / "b.png", noise(4, 5))
    refused(lambda: load_images(str(tmp_path)), tmp_path / "a.png", "6x4", tmp_path / "b.png", "5x4", "give a size")
    assert load_images(str(tmp_path), size=4).shape == (1, 4, 4)
    assert load_images(str(tmp_path), crop=3).shape == (1, 3, 3)


def test_channels(tmp_path: Path) -> None:
    grey = noise(4, 4)
    save_image(tmp_path / "a.png", grey)
    assert load_images(str(tmp_path)).shape == (1, 4, 4)
    widened = load_images(str(tmp_path), channels=3)
    assert widened.shape == (3, 4, 4)
    np.testing.assert_array_equal(everything(widened)[0], np.repeat(grey[..., None], 3, axis=2))
    save_image(tmp_path / "b.png", noise(4, 4, 3))
    assert load_images(str(tmp_path)).shape == (3, 4, 4)
    refused(lambda: load_images(str(tmp_path), channels=1), tmp_path / "b.png", "colour")


@pytest.mark.parametrize(
    ("mode", "extension", "channels"),
    [
        ("1", "png", 1),
        ("LA", "png", 1),
        ("P", "png", 3),
        ("P", "gif", 3),
        ("RGBA", "png", 3),
        ("RGBA", "webp", 3),
        ("CMYK", "tif", 3),
        ("CMYK", "jpg", 3),
        ("YCbCr", "jpg", 3),
    ],
)
def test_modes_become_grey_or_rgb(tmp_path: Path, mode: str, extension: str, channels: int) -> None:
    path = tmp_path / f"a.{extension}"
    Image.fromarray(noise(8, 8, 3)).convert(mode).save(path)
    images = load_images(str(path))
    assert images.shape == (channels, 8, 8)
    expected = np.asarray(Image.open(path).convert("L" if channels == 1 else "RGB")).reshape(8, 8, channels)
    np.testing.assert_array_equal(everything(images)[0], expected)


@pytest.mark.filterwarnings("error")
def test_transparent_palette(tmp_path: Path) -> None:
    picture = Image.fromarray(noise(8, 8, 3)).convert("P")
    picture.save(tmp_path / "a.png", transparency=bytes([0, 128, 255]))
    np.testing.assert_array_equal(everything(load_images(str(tmp_path)))[0], np.asarray(picture.convert("RGB")))


def test_sixteen_bits_are_scaled_and_more_refused(tmp_path: Path) -> None:
    values = np.array([[0, 257, 65535], [200 * 257, 128 * 257 + 100, 100]], dtype=np.uint16)
    for name in ("a.png", "b.tif"):
        Image.fromarray(values).save(tmp_path / name)
    expected = np.round(values / 257).astype(np.uint8)
    for picture in everything(load_images(str(tmp_path))):
        np.testing.assert_array_equal(picture[..., 0], expected)
    Image.fromarray(np.ones((2, 3), dtype=np.float32)).save(tmp_path / "c.tif")
    refused(lambda: load_images(str(tmp_path)), tmp_path / "c.tif", "32 bits")


@pytest.mark.parametrize("extension", ["png", "tif", "jpg", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path: Path, extension: str, orientation: int) -> None:
    upright = np.full((16, 32, 3), 255, dtype=np.uint8)
    upright[:8, :8] = 0  # dark in the upper left corner only
    undo = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save_image(tmp_path / f"a.{extension}", np.ascontiguousarray(undo[orientation]), exif=exif)
    images = load_images(str(path))
    assert images.shape == (3, 16, 32)
    np.testing.assert_allclose(everything(images)[0].astype(int), upright.astype(int), atol=40)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_reads_back(tmp_path: Path, channels: int) -> None:
    pixels = noise(5, 4, channels)
    (tmp_path / "one.png").write_bytes(png(pixels))
    images = load_images(str(tmp_path))
    assert images.shape == (channels, 5, 4)
    np.testing.assert_array_equal(everything(images)[0], pixels)
