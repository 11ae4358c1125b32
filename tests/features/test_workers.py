"""Workers read the images of their own rows, and nothing else; what has changed or vanished is named in one line."""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, Image

import tiny
from commands import processes
from dtrak import load_images
from dtrak.engines.jobs import ThisProcess
from dtrak.errors import DtrakError
from dtrak.features.featurizing import Parts, Work
from dtrak.features.model_inputs import ModelInputs
from dtrak.features.spec import Spec
from dtrak.gradients.copies import Copies
from dtrak.images.images import Images
from dtrak.images.objects import images_from
from featurized import featurize
from pictures_on_disk import save_image

DIGITS = load_images("digits:train")
COUNT = 70  # three shards
SETTINGS = Spec(timesteps="uniform:2", projection="identity", layers="conv_out")
SHARD = "train-square-*/shard-00001.safetensors"


class Sending(ThisProcess):
    """An engine that sends everything as a pool does, to this process."""

    is_here = False

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.came_home = 0  # shards

    def run(self, work: Any, context: Any, jobs: Any, *where: Any) -> Iterator[Any]:
        context = pickle.loads(pickle.dumps(context))
        for job in jobs:
            sent = pickle.dumps(job)
            self.sizes.append(len(sent))
            done = work(context, pickle.loads(sent))
            self.came_home += getattr(done, "features", None) is not None
            yield job, done


class Blind(Sending):
    """An engine whose workers do not see a file."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def run(self, work: Any, context: Any, jobs: Any, *where: Any) -> Iterator[Any]:
        for job in jobs:
            hidden = self.file.rename(self.file.with_suffix(".hidden"))
            (done,) = super().run(work, context, [job], *where)
            hidden.rename(self.file)
            yield done


class Elsewhere(Sending):
    """An engine that sends everything to a new process. It has opened no images, and need not import for seconds."""

    def run(self, work: Any, context: Any, jobs: Any, *where: Any) -> Iterator[Any]:
        with processes.Pool(1) as worker:
            for job in jobs:
                yield job, worker.apply(work, (context, job))


def folder(home: Path) -> str:
    for row, pixels in enumerate(DIGITS.pixels(range(COUNT))):
        save_image(home / "images" / f"{row:03d}.png", pixels[..., 0])
    return str(home / "images")


def plain_npz(home: Path) -> str:
    np.savez(home / "plain.npz", labels=DIGITS.columns["label"][:COUNT], images=DIGITS.pixels(range(COUNT)))
    return str(home / "plain.npz")


def compressed_npz(home: Path) -> str:
    np.savez_compressed(home / "small.npz", images=DIGITS.pixels(range(COUNT))[..., 0])
    return str(home / "small.npz")


def object_store(home: Path) -> str:
    """A folder by an address that fsspec opens, as it would one in an object store."""
    return Path(folder(home)).as_uri()


def hugging_face(home: Path) -> str:
    files = sorted(str(one) for one in Path(folder(home)).iterdir())
    Dataset.from_dict({"image": files}).cast_column("image", Image()).to_parquet(str(home / "set" / "train.parquet"))
    return f"hf:{home / 'set'}:train"


def parquet(home: Path) -> str:
    """A file for each shard."""
    cells = [{"path": None, "bytes": one.read_bytes()} for one in sorted(Path(folder(home)).iterdir())]
    for number, start in enumerate(range(0, COUNT, 32)):
        rows = Dataset.from_dict({"image": cells[start : start + 32]}).cast_column("image", Image())
        rows.to_parquet(str(home / "set" / f"{number}.parquet"), batch_size=10)
    return f"parquet:{home / 'set'}"


@pytest.mark.parametrize("make", [folder, plain_npz, hugging_face, object_store, parquet])
def test_a_worker_gets_names_and_makes_the_same_bytes(make: Callable[[Path], str], tmp_path: Path) -> None:
    images, model, engine = load_images(make(tmp_path)), tiny.unet(), Sending()
    here = featurize(model, images, ["square"], SETTINGS, tmp_path / "here", "train")["square"]
    there = featurize(model, images, ["square"], SETTINGS, tmp_path / "there", "train", engine)["square"]
    assert there.numpy().tobytes() == here.numpy().tobytes()
    named = images.select(range(32)).by_name()
    assert named is not None
    pixels = len(pickle.dumps(images.select(range(32)).in_memory()))
    assert max(engine.sizes) < len(pickle.dumps(named)) + 2000 < pixels + 32 * 200


class FarAway(Sending):
    """An engine whose workers do not see the stores: their folders have other files there."""

    def run(self, work: Any, context: Any, jobs: Any, *where: Any) -> Iterator[Any]:
        far = replace(context, places=[(folder, (0, 0, 0)) for folder, _ in context.places])
        return super().run(work, far, jobs, *where)


@pytest.mark.parametrize(("engine", "came_home"), [(Sending(), 0), (FarAway(), 3)])
def test_a_worker_that_sees_the_stores_writes_them_and_from_others_features_come_home(
    engine: Sending, came_home: int, tmp_path: Path
) -> None:
    images, model = load_images(folder(tmp_path)), tiny.unet()
    here = featurize(model, images, ["simple", "square"], SETTINGS, tmp_path / "here", "train")
    there = featurize(model, images, ["simple", "square"], SETTINGS, tmp_path / "there", "train", engine)
    assert engine.came_home == came_home
    for objective, store in here.items():
        assert there[objective].numpy().tobytes() == store.numpy().tobytes()


def test_what_a_worker_gets_does_not_grow_with_the_images(tmp_path: Path) -> None:
    """The pictures of 256 × 256 pixels would take 200 KB each."""
    for row in range(COUNT):
        save_image(tmp_path / f"{row:03d}.png", np.full((256, 256, 3), row, dtype=np.uint8))
    every = load_images(str(tmp_path))
    sizes = []
    for count in (33, COUNT):
        inputs = ModelInputs(every.first(count))
        work = Work(tiny.unet(), SETTINGS, (), Copies((0,)), {}, None, False)
        parts = Parts(inputs, [range(32)], by_name=True)
        sizes.append((len(pickle.dumps(work)), len(pickle.dumps(parts[0]))))
    assert abs(sizes[0][0] - sizes[1][0]) < 100
    assert sizes[0][1] == sizes[1][1] < 32 * 400


def begun(images: Images, home: Path, shard: str = SHARD) -> None:
    """Fill a store but for its second shard."""
    featurize(tiny.unet(), images, ["square"], SETTINGS, home, "train")
    next(home.glob(shard)).rename(home / "expected")


def test_a_worker_reads_its_rows_alone(tmp_path: Path) -> None:
    """The images of all other rows have vanished."""
    images = load_images(folder(tmp_path))
    begun(images, tmp_path / "store")
    for row in [*range(32), *range(64, COUNT)]:
        (tmp_path / "images" / f"{row:03d}.png").unlink()
    store = featurize(tiny.unet(), images, ["square"], SETTINGS, tmp_path / "store", "train", Elsewhere())
    assert (store["square"].folder / Path(SHARD).name).read_bytes() == (tmp_path / "store/expected").read_bytes()


def test_a_worker_opens_its_parquet_files_alone(tmp_path: Path) -> None:
    """The files of all other shards have vanished."""
    images = load_images(parquet(tmp_path))
    begun(images, tmp_path / "store")
    for number in (0, 2):
        (tmp_path / "set" / f"{number}.parquet").unlink()
    store = featurize(tiny.unet(), images, ["square"], SETTINGS, tmp_path / "store", "train", Elsewhere())
    assert (store["square"].folder / Path(SHARD).name).read_bytes() == (tmp_path / "store/expected").read_bytes()


def test_a_worker_reads_its_rows_of_an_npz_file_alone(tmp_path: Path) -> None:
    """The bytes of all other rows are overwritten in the file."""
    images = load_images(plain_npz(tmp_path))
    begun(images, tmp_path / "store")
    path, pixels = tmp_path / "plain.npz", DIGITS.pixels(range(COUNT)).tobytes()
    start = path.read_bytes().index(pixels)
    with open(path, "r+b") as file:
        for first, last in ((0, 32), (64, COUNT)):
            file.seek(start + 64 * first)
            file.write(bytes(64 * (last - first)))
    store = featurize(tiny.unet(), images, ["square"], SETTINGS, tmp_path / "store", "train", Sending())
    assert (store["square"].folder / Path(SHARD).name).read_bytes() == (tmp_path / "store/expected").read_bytes()
    (store["square"].folder / "shard-00000.safetensors").unlink()
    with pytest.raises(DtrakError, match=r"plain.npz, image 0 has changed since it was first read"):
        featurize(tiny.unet(), images, ["square"], SETTINGS, tmp_path / "store", "train", Sending())


@pytest.mark.parametrize("engine", [None, Sending()])
def test_images_that_vanished_or_changed_are_named(engine: Sending | None, tmp_path: Path) -> None:
    images = load_images(folder(tmp_path))
    begun(images, tmp_path / "store")
    path = tmp_path / "images" / "040.png"
    content = path.read_bytes()

    def again() -> None:
        featurize(tiny.unet(), images, ["square"], SETTINGS, tmp_path / "store", "train", engine)

    path.unlink()
    with pytest.raises(DtrakError, match=r"^cannot read .*040.png: No such file or directory$"):
        again()
    path.write_bytes((tmp_path / "images" / "041.png").read_bytes())
    with pytest.raises(DtrakError, match=r"^.*040.png has changed since it was first read: run the command again"):
        again()
    path.write_bytes(content)
    again()
    assert next((tmp_path / "store").glob(SHARD)).read_bytes() == (tmp_path / "store/expected").read_bytes()


def test_pixels_are_sent_to_workers_that_see_no_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = load_images(plain_npz(tmp_path))
    begun(images, tmp_path / "store")
    engine = Blind(tmp_path / "plain.npz")
    store = featurize(tiny.unet(), images, ["square"], SETTINGS, tmp_path / "store", "train", engine)
    assert (store["square"].folder / Path(SHARD).name).read_bytes() == (tmp_path / "store/expected").read_bytes()
    assert "plain.npz themselves" in " ".join(capsys.readouterr().err.split())


def test_python_objects_are_sent_shard_by_shard(tmp_path: Path) -> None:
    files = [{"path": path, "bytes": None} for path in sorted(map(str, Path(folder(tmp_path)).iterdir()))]
    given = [
        images_from(DIGITS.pixels(range(COUNT))),
        images_from(Dataset.from_dict({"image": files}).cast_column("image", Image())),
        load_images(compressed_npz(tmp_path)),
    ]
    stores = []
    for number, images in enumerate(given):
        images = replace(images, ids=np.arange(COUNT))
        assert images.by_name() is None
        engine = Sending()
        stores.append(featurize(tiny.unet(), images, ["square"], SETTINGS, tmp_path / f"{number}", "train", engine))
        assert len(engine.sizes) == 3
    assert len({store["square"].numpy().tobytes() for store in stores}) == 1
