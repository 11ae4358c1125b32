"""Image folders, lists and arrays that are odd or hostile: one line each, nothing outside is read, nothing hangs."""

import io
import json
import os
import socket
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from commands import dtrak
from dtrak import ready_run
from dtrak.errors import DtrakError
from dtrak.images.image_files import INTERLACED, WHOLE
from dtrak.images.images import load_images, read_ids
from pictures_on_disk import everything, noise, refused, save_image, save_npz

# links


@pytest.fixture
def six(tmp_path: Path) -> Path:
    """Six images in two classes."""
    for name in ("cat", "dog"):
        for number in range(3):
            save_image(tmp_path / "set" / name / f"{number}.png", noise(4, 4))
    return tmp_path / "set"


def test_links_that_loop_are_left_out(six: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = load_images(str(six)).ids.tolist()
    (six / "cat" / "loop").symlink_to(six)
    (six / "dog" / "around").symlink_to("..")
    (six / "dog" / "itself").symlink_to("itself")
    (six / "beyond").symlink_to(six.parent.parent)
    assert load_images(str(six)).ids.tolist() == plain
    assert len(plain) == 6
    assert f"Left out: {six / 'cat' / 'loop'} is a link to a folder that contains it" in capsys.readouterr().err


def test_links_to_each_other_are_walked_once(six: Path) -> None:
    for name in ("cat", "dog"):
        for other in ("cat", "dog"):
            (six / name / f"to-{other}").symlink_to(six / other)
    images = load_images(str(six))
    assert images.ids.tolist() == [f"{name}/{number}.png" for name in ("cat", "dog") for number in range(3)]
    assert images.columns["label"].tolist() == ["cat"] * 3 + ["dog"] * 3


def test_links_to_other_folders_still_count(six: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_image(tmp_path / "more" / "deep" / "9.png", noise(4, 4))
    (tmp_path / "more" / "back").symlink_to(six)
    (six / "a-bird").symlink_to(tmp_path / "more")
    (six / "zebra").symlink_to(tmp_path / "more")
    (six / "cat" / "3.png").symlink_to(six / "dog" / "0.png")
    ids = load_images(str(six)).ids.tolist()
    assert ids == ["a-bird/deep/9.png", *(f"cat/{n}.png" for n in range(4)), *(f"dog/{n}.png" for n in range(3))]
    assert (
        f"Left out: {six / 'zebra'} is a link to a folder whose images are included already" in capsys.readouterr().err
    )


def test_a_link_to_the_set_itself_is_a_set(six: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(six)
    (six / "loop").symlink_to(tmp_path / "linked")
    assert len(load_images(str(tmp_path / "linked"))) == 6


# pipes, sockets and folders in the place of files


def test_pipes_and_sockets_are_not_waited_for(tmp_path: Path) -> None:
    save_image(tmp_path / "set" / "a.png", noise(4, 4))
    pipe = tmp_path / "set" / "b.png"
    os.mkfifo(pipe)
    refused(lambda: load_images(str(tmp_path / "set")), pipe, "a pipe or a device")
    refused(lambda: load_images(str(pipe)), "no images at")
    pipe.unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(pipe))
        refused(lambda: load_images(str(tmp_path / "set")), pipe)
    pipe.unlink()
    pipe.symlink_to("/dev/zero")
    refused(lambda: load_images(str(tmp_path / "set")), pipe, "a pipe or a device")
    pipe.unlink()
    for name in ("metadata.csv", "metadata.jsonl"):
        os.mkfifo(tmp_path / "set" / name)
        refused(lambda: load_images(str(tmp_path / "set")), name, "a pipe or a device")
        (tmp_path / "set" / name).unlink()
    for name in ("set.npz", "ids.txt", "ids.npy"):
        os.mkfifo(tmp_path / name)
    refused(lambda: load_images(str(tmp_path / "set.npz")), "no images at")
    for name in ("ids.txt", "ids.npy"):
        refused(lambda name=name: read_ids(str(tmp_path / name)), name, "a pipe or a device")  # type: ignore[misc]


def test_a_pipe_as_ids_is_one_line_at_the_command_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ids.txt")
    outcome = dtrak("train", "digits", "--out", "run", "--subset", "ids.txt", cwd=tmp_path)
    assert outcome.code == 2
    assert outcome.error == "cannot read ids.txt: it is a pipe or a device, not a file"


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl"])
def test_metadata_that_is_a_folder(name: str, tmp_path: Path) -> None:
    save_image(tmp_path / "a.png", noise(4, 4))
    (tmp_path / name).mkdir()
    refused(lambda: load_images(str(tmp_path)), tmp_path / name, "is a folder")


def test_an_image_that_is_a_folder_is_one_more_folder(tmp_path: Path) -> None:
    save_image(tmp_path / "a.png" / "b.png", noise(4, 4))
    assert load_images(str(tmp_path)).ids.tolist() == ["a.png/b.png"]
    (tmp_path / "ids.txt").mkdir()
    refused(lambda: read_ids(str(tmp_path / "ids.txt")), "it is a folder")


@pytest.mark.parametrize(
    "name", ["x" * 5000, "a\0b", "x" * 300 + ".png", f"celeba:{'x' * 5000}:train", "celeba:\0:test"]
)
def test_names_that_no_file_can_have(name: str) -> None:
    refused(lambda: load_images(name))
    refused(lambda: load_images(f"hf:{name}:train"))
    refused(lambda: load_images(f"artbench:{name}:train"))
    refused(lambda: read_ids(name))
    refused(lambda: read_ids(f"{name}.txt"))


# metadata


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("jsonl", b"[1, 2]\n", "line 1 is not a JSON object"),
        ("jsonl", b'{"file_name": "a.png"}\n[["file_name", "b.png"]]\n', "line 2 is not a JSON object"),
        ("jsonl", b'"ab"\n', "line 1 is not a JSON object"),
        ("jsonl", b'{"file_name": "a.png", "artist": "x", "artist": "y"}\n', "line 1: a key appears twice"),
        ("jsonl", b'{"file_name": "a.png", "x": {"y": 1, "y": 2}}\n', "line 1: a key appears twice"),
        ("jsonl", b'{"file_name": "a.png", "score": NaN}\n', "line 1: NaN is not JSON: write null"),
        ("jsonl", b'{"file_name": "a.png", "score": -Infinity}\n', "-Infinity is not JSON"),
        ("jsonl", b'{"file_name": "a.png", "n": ' + b"9" * 5000 + b"}\n", "line 1: Exceeds the limit"),
        ("jsonl", b'{"file_name": "a.png", "n": ' + b"[" * 10**6 + b"}\n", "line 1: maximum recursion depth"),
        ("jsonl", '{"file_name": "a.png"}\n'.encode("utf-16"), "codec can't decode"),
        ("jsonl", b'{"file_name": "\xe9.png"}\n', "codec can't decode"),
        ("jsonl", b'{"file_name": "../a.png"}\n', "it names '../a.png', but there is no such image"),
        ("jsonl", b'{"file_name": "/etc/passwd"}\n', "it names '/etc/passwd', but there is no such image"),
        ("jsonl", b'{"file_name": "a.png\\u0000"}\n', "but there is no such image"),
        ("jsonl", b'{"file_name": ["a.png"]}\n', "but there is no such image"),
        ("jsonl", b'{"file": "a.png"}\n', "a row has no file_name"),
        ("jsonl", b'{"file_name": null}\n', "a row has no file_name"),
        ("csv", b"file_name,artist,artist\na.png,x,y\n", "a column appears twice"),
        ("csv", b"file_name,artist\na.png\n", "line 2, 'a.png', has fewer cells than columns"),
        ("csv", b'file_name,artist\na.png,"x\n', "unexpected end of data"),
        ("csv", b"file_name,artist\na.png," + b"x" * 200_000 + b"\n", "field larger than field limit"),
        ("csv", "file_name,artist\na.png,é\n".encode("latin-1"), "codec can't decode"),
        ("csv", b"artist\nx\n", "a row has no file_name"),
    ],
)
def test_odd_metadata_is_one_line(file: str, content: bytes, said: str, tmp_path: Path) -> None:
    save_image(tmp_path / "set" / "a.png", noise(4, 4))
    save_image(tmp_path / "a.png", noise(4, 4))
    path = tmp_path / "set" / f"metadata.{file}"
    path.write_bytes(content)
    assert len(refused(lambda: load_images(str(tmp_path / "set")), path, said)) < 400


def test_metadata_that_is_only_unusual(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"file_name": "a.png", "huge": 2**70, "edge": 2**63, "mixed": 1, "text": "x" * 10**7, "box": {"x": [1]}},
        {"file_name": "b.png", "huge": -(2**70), "edge": -1, "mixed": 2.5, "text": "short", "box": None},
    ]
    for row in rows:
        save_image(tmp_path / row["file_name"], noise(4, 4))
    text = "\ufeff" + "\r\n\r\n".join(json.dumps(row) for row in rows)
    (tmp_path / "metadata.jsonl").write_text(text, encoding="utf-8", newline="")
    columns = load_images(str(tmp_path)).columns
    for name in ("huge", "edge", "mixed", "text", "box"):
        assert columns[name].tolist() == [row[name] for row in rows], name
    assert columns["text"].nbytes < 1000, "one long text must not take its room for every image"


def test_odd_metadata_at_the_command_line(tmp_path: Path) -> None:
    save_image(tmp_path / "set" / "a.png", noise(8, 8))
    (tmp_path / "set" / "metadata.jsonl").write_text("null\n")
    model = ready_run(tmp_path / "run").folder / "model"
    words = ("attribute", "--model", model, "--train", "set", "--queries", "set", "--out", "s.npz")
    outcome = dtrak(*words, cwd=tmp_path)
    assert outcome.code == 2
    assert outcome.error.startswith("cannot read set/metadata.jsonl: line 1 is not a JSON object")


# lists of published data sets


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("../../secret.jpg 0\n", "it names '../../secret.jpg'"),
        ("/etc/passwd 0\n", "it names '/etc/passwd'"),
        ("sub/1.jpg 0\n", "it names 'sub/1.jpg'"),
        (".. 0\n", "it names '..'"),
        ("1.jpg\0 0\n", "which is no file in the folder"),
        ("1.jpg\n", "line 1 is '1.jpg', but must be like '000001.jpg 0'"),
        ("1.jpg 0\n1.jpg 0 more\n", "line 2 is '1.jpg 0 more'"),
        ("1.jpg 7\n", "line 1 is '1.jpg 7'"),
        ("1.jpg 0\n1.jpg 0\n", "it names '1.jpg' more than once"),
    ],
)
def test_a_celeba_list_stays_in_its_folder(lines: str, said: str, tmp_path: Path) -> None:
    save_image(tmp_path / "secret.jpg", noise(4, 4, 3))
    save_image(tmp_path / "a" / "faces" / "img_align_celeba" / "1.jpg", noise(4, 4, 3))
    folder = tmp_path / "a" / "faces"
    (folder / "list_eval_partition.txt").write_text(lines)
    refused(lambda: load_images(f"celeba:{folder}:train"), folder / "list_eval_partition.txt", said)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("../x.jpg,anna,style,train\n", "it names 'style/../x.jpg'"),
        ("x.jpg,anna,..,train\n", "it names '../x.jpg'"),
        ("x.jpg,anna,/etc,train\n", "it names '/etc/x.jpg'"),
        ("x.jpg,anna,style\n", "fewer cells"),
        ("x.jpg,anna,style,train,more\n", "more cells"),
        ("x.jpg,anna,style,train\nx.jpg,anna,style,train\n", "it names 'style/x.jpg' more than once"),
    ],
)
def test_the_list_of_artbench_stays_in_its_folder(rows: str, said: str, tmp_path: Path) -> None:
    for name in ("x.jpg", "style/x.jpg"):
        save_image(tmp_path / "artbench-10-imagefolder" / name, noise(4, 4, 3))
    (tmp_path / "ArtBench-10.csv").write_text("name,artist,label,split\n" + rows)
    refused(lambda: load_images(f"artbench:{tmp_path}:train"), tmp_path / "ArtBench-10.csv", said)
    (tmp_path / "ArtBench-10.csv").write_text("name,artist,label\nx.jpg,anna,style\n")
    refused(lambda: load_images(f"artbench:{tmp_path}:train"), "it has no column 'split'")


# pictures


def test_pictures_without_pixels_and_bombs(tmp_path: Path) -> None:
    refused(lambda: load_images(save_npz(tmp_path / "a.npz", images=noise(2, 0, 4))), "'images'", "one pixel")
    refused(lambda: load_images(save_npz(tmp_path / "a.npz", images=noise(2, 4, 0, 3))), "'images'", "one pixel")
    buffer = io.BytesIO()
    Image.new("L", (4, 4)).save(buffer, format="GIF")
    empty = bytearray(buffer.getvalue())
    empty[6:10] = bytes(4)  # the size of the screen
    for place in range(len(empty) - 9):
        if empty[place] == 0x2C:  # and of its only frame
            empty[place + 5 : place + 9] = bytes(4)
            break
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.gif").write_bytes(empty)
    refused(lambda: load_images(str(tmp_path / "set")), "a.gif", "it is not an image")
    Image.new("1", (20_000, 20_000)).save(tmp_path / "set" / "a.png")
    (tmp_path / "set" / "a.gif").unlink()
    refused(lambda: load_images(str(tmp_path / "set")), "a.png", "decompression bomb")


def test_the_first_frame_of_an_animation_counts(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "green", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert everything(load_images(str(tmp_path)))[0, 0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("extension", ["png", "jpg", "bmp", "gif", "tif", "webp", "ppm"])
def test_truncated_pictures_are_never_read(extension: str, tmp_path: Path) -> None:
    path = save_image(tmp_path / f"a.{extension}", noise(32, 32, 3))
    whole = path.read_bytes()
    for share in (0, 0.1, 0.5, 0.9):
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(DtrakError, match=f"a.{extension}"):
            load_images(str(tmp_path)).pixels([0])


def png_file(shape: tuple[int, int], depth: int, colour: int, interlaced: int, data: bytes, pieces: int = 1) -> bytes:
    """A PNG of width and height with these data of its pixels, whose chunks are whole and have their checksums."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    begin = chunk(b"IHDR", struct.pack(">IIBBBBB", *shape, depth, colour, 0, 0, interlaced))
    palette = chunk(b"PLTE", bytes(range(48))) if colour == 3 else b""
    size = -(-len(data) // pieces)
    parts = [chunk(b"IDAT", data[start : start + size]) for start in range(0, len(data), size)]
    return b"\x89PNG\r\n\x1a\n" + begin + palette + b"".join(parts) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [3, 40, 100])
@pytest.mark.parametrize(("depth", "colour", "channels"), [(8, 0, 1), (8, 2, 3), (4, 3, 1), (8, 6, 4), (16, 0, 1)])
@pytest.mark.parametrize("is_interlaced", [False, True])
def test_a_png_whose_data_end_early_is_never_read(
    side: int, depth: int, colour: int, channels: int, is_interlaced: bool, tmp_path: Path
) -> None:
    """Pillow reads what is missing as black, if the data are a whole stream of zlib."""
    passes = INTERLACED if is_interlaced else WHOLE
    data = b""
    for left, top, across, down in passes:
        columns, rows = len(range(left, side, across)), len(range(top, side, down))
        if columns:
            line = noise(rows, 1 + -(-columns * depth * channels // 8)) & 0x77  # indices of the palette are below 16
            line[:, 0] = 0  # no filter
            data += line.tobytes()
    path = tmp_path / "a.png"

    def read(content: bytes) -> NDArray[np.uint8]:
        path.write_bytes(png_file((side, side), depth, colour, int(is_interlaced), zlib.compress(content), pieces=3))
        return load_images(path).pixels([0])

    assert read(data).any()
    assert not read(bytes(len(data))).any() or colour == 3, "a black picture is whole"
    for length in sorted({0, 1, len(data) // 2, len(data) - side, len(data) - 1}):
        refused(lambda length=length: read(data[:length]), f"cannot read {path}", kind=DtrakError)  # type: ignore[misc]


# arrays


def header(shape: tuple[int, ...], kind: str = "|u1") -> bytes:
    """The beginning of an .npy file."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
    return file.getvalue()


@pytest.mark.parametrize("shape", [(10**6, 10**5, 10**5, 3), (10, 8, 8), (1, 1, 1)])
def test_an_array_that_promises_more_or_less_than_it_has(shape: tuple[int, ...], tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "set.npz", "w") as archive:
        archive.writestr("images.npy", header(shape) + bytes(100))
    refused(lambda: load_images(str(tmp_path / "set.npz")), "set.npz", "its header promises", "100 follow")
    (tmp_path / "ids.npy").write_bytes(header((2**60,), "<i8") + bytes(80))
    refused(lambda: read_ids(str(tmp_path / "ids.npy")), "ids.npy", "its header promises", "80 follow")


def test_an_archive_larger_than_the_memory(tmp_path: Path) -> None:
    size = 2**50
    with zipfile.ZipFile(tmp_path / "set.npz", "w") as archive:
        archive.writestr("images.npy", header((size,)))
        archive.infolist()[0].file_size = size  # as a bomb's list of contents has it
        archive.infolist()[0].compress_size = 10
    refused(lambda: load_images(str(tmp_path / "set.npz")), "more memory than there is")


def test_integers_beyond_int64_do_not_wrap(tmp_path: Path) -> None:
    large = np.array([1, 2**63 + 5], dtype=np.uint64)
    for key in ("ids", "labels"):
        path = save_npz(tmp_path / "set.npz", images=noise(2, 4, 4), **{key: large})
        refused(lambda path=path: load_images(path), f"{key!r} holds {2**63 + 5}", "below 2^63")  # type: ignore[misc]
    np.save(tmp_path / "ids.npy", large)
    refused(lambda: read_ids(str(tmp_path / "ids.npy")), 2**63 + 5, "below 2^63")
    np.save(tmp_path / "ids.npy", np.array([2**63 - 1], dtype=np.uint64))
    assert read_ids(str(tmp_path / "ids.npy")).tolist() == [2**63 - 1]
    (tmp_path / "ids.txt").write_text(f"1\n{2**63 + 5}\n")
    assert read_ids(str(tmp_path / "ids.txt")).tolist() == ["1", str(2**63 + 5)]


@pytest.mark.parametrize("name", ["two\nlines", "", " blank", "\udcff.png", "a\u2028b"])
def test_ids_that_a_run_could_not_keep(name: str, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.array(["fine", name]))
    refused(lambda: read_ids(str(tmp_path / "ids.npy")), repr(name), "one line of text")


@pytest.mark.parametrize("prompts", [["only one"], np.array(["a", None], dtype=object), np.array([b"a", b"b"])])
def test_prompts_in_an_array_are_not_lost_in_silence(prompts: Any, tmp_path: Path) -> None:
    path = save_npz(tmp_path / "set.npz", images=noise(2, 4, 4), prompt=prompts)
    refused(lambda: load_images(path), "'prompt' is", "must be text or numbers [2]")
