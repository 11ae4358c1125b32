"""What goes wrong ends in one line that names what was typed and what would be right, and damages nothing."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from PIL import Image
from safetensors.torch import load_file, save_file

from commands import dtrak, dtrak_fresh
from conftest import tiny_recipe
from dtrak.images.images import load_images

MakeRecipe = Callable[..., Path]
WEIGHTS = "unet/diffusion_pytorch_model.safetensors"


def content(folder: Path) -> dict[str, str]:
    """Every file below the folder with a digest of what it holds; temporary ones too."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path.relative_to(folder).as_posix(): blake2b(path.read_bytes()).hexdigest() for path in sorted(files)}


def put_nan(model: Path) -> None:
    weights = load_file(model / WEIGHTS)
    weights["conv_out.bias"][0] = torch.nan
    save_file(weights, model / WEIGHTS, {"format": "pt"})


@pytest.fixture(scope="module")
def place(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a good run and all kinds of bad files; no command may change anything in it."""
    folder = tmp_path_factory.mktemp("place")
    shutil.copytree(finished_run, folder / "run")

    tiny_recipe(folder / "tiny.yaml")
    tiny_recipe(folder / "epochs.yaml", training={"epochs": "many"})
    tiny_recipe(folder / "method.yaml", attribution={"method": "d-track"})
    (folder / "broken.yaml").write_text("name: broken\ndata: [1, 2\ntraining: {}\n")
    (folder / "ids.txt").write_text("1\n2\n5000\n")
    (folder / "no-ids.txt").write_text("\n")

    (folder / "pictures").mkdir()
    Image.new("L", (8, 8)).save(folder / "pictures" / "good.png")
    (folder / "pictures" / "bad.png").write_text("not an image")
    (folder / "empty").mkdir()
    Image.new("RGB", (8, 8)).save(folder / "colour.png")
    Image.new("L", (16, 16)).save(folder / "large.png")
    np.savez(folder / "keys.npz", pictures=np.zeros((2, 8, 8), np.uint8))
    np.savez(folder / "shape.npz", images=np.zeros((2, 8, 8, 4), np.uint8))
    np.savez(folder / "floats.npz", images=np.zeros((2, 8, 8)))
    (folder / "text.npz").write_text("no archive")

    for name in ("no-weights", "damaged", "nan"):
        shutil.copytree(finished_run / "model", folder / name)
    (folder / "no-weights" / WEIGHTS).unlink()
    whole = (folder / "damaged" / WEIGHTS).read_bytes()
    (folder / "damaged" / WEIGHTS).write_bytes(whole[: len(whole) // 2])
    put_nan(folder / "nan")
    blocks = {"block_out_channels": (8,), "down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",)}
    unet = UNet2DModel(sample_size=16, in_channels=1, out_channels=1, norm_num_groups=4, **blocks)
    DDPMPipeline(unet, DDPMScheduler()).save_pretrained(folder / "model16")
    (folder / "file").write_text("in the way")
    (folder / "untrained").mkdir()
    tiny_recipe(folder / "untrained" / "recipe.yaml")
    return folder


ELSEWHERE = "attribute --train digits:train --queries run/generated --out s.npz"
FAULTS = {
    # wrong use of the command line
    "dtrak draw": (2, "No such command 'draw'"),
    "dtrak train tiny.yaml": (2, "Missing option '--out' (--help tells more)"),
    "dtrak run": (2, "Missing argument 'RECIPE'"),
    "dtrak run tiny.yaml --fast": (2, "No such option: --fast"),
    "dtrak generate run --count many": (2, "'--count': 'many' is not a whole number from 1 on"),
    "dtrak generate run --count 0": (2, "'--count': '0' is not a whole number from 1 on"),
    "dtrak generate run --seed -1": (2, "'--seed': '-1' is not a whole number from 0 on"),
    "dtrak train tiny.yaml --out new --device gpu": (2, "unknown device 'gpu': choose from cpu"),
    "dtrak attribute": (2, "give a run, or all of --model, --train, --queries and --out"),
    "dtrak attribute run --model nan": (
        2,
        "give a run (run), or --model and --train (and --lora, --prompt, --size), not both",
    ),
    # recipes
    "dtrak run digit": (2, "unknown recipe 'digit': choose from artbench2, artbench5, celeba, cifar10, cifar2, "),
    "dtrak run tiny.yaml --scale small": (2, "tiny.yaml has no scale 'small': it has one scale only"),
    "dtrak run tiny.yaml --train nowhere --dry-run": (2, "no images at 'nowhere': give digits:train"),
    "dtrak run tiny.yaml --base model": (2, "tiny.yaml: model.base: Extra inputs are not permitted (it says 'model')"),
    "dtrak run celeba --out new": (2, "no CelebA in data/celeba: list_eval_partition.txt is missing; CelebA is publis"),
    "dtrak run artbench2 --scale small": (2, "artbench2 at scale small names no Stable Diffusion to start from"),
    "dtrak recipes digit": (2, "unknown recipe 'digit'"),
    "dtrak train broken.yaml --out new": (2, "broken.yaml is not YAML in line 3: expected ',' or ']', but got ':'"),
    "dtrak train epochs.yaml --out new": (2, "epochs.yaml: training.epochs: Input should be a valid integer"),
    "dtrak run method.yaml --out new": (2, "unknown method 'd-track': choose from random, "),
    "dtrak train tiny.yaml --out new --subset ids.txt": (2, "ids.txt: id 5000 is not in digits:train (1000 images"),
    "dtrak train tiny.yaml --out new --subset no-ids.txt": (2, "no-ids.txt holds"),
    "dtrak train tiny.yaml --out new --subset none.txt": (2, "cannot read none.txt: No such file"),
    "dtrak train tiny.yaml --out new --subset ids.csv": (2, "'ids.csv': give an .npy or a .txt file"),
    # runs
    "dtrak generate nothing": (2, "nothing is not a run: it has no recipe.yaml (`dtrak train RECIPE --out nothing`"),
    "dtrak generate untrained": (2, "untrained has no model yet: `dtrak train untrained/recipe.yaml --out untrained`"),
    "dtrak attribute untrained": (2, "untrained has no generated pictures yet: `dtrak generate untrained`"),
    "dtrak report untrained": (2, "untrained has no scores yet: `dtrak attribute untrained` makes them"),
    # methods and their settings
    "dtrak attribute run --method d-track": (2, "unknown method 'd-track': choose from random, "),
    "dtrak attribute run --objective cube": (2, "unknown objective 'cube': choose from simple"),
    "dtrak attribute run --method trak --objective avg": (2, "trak does not take the objective 'avg': d-trak does"),
    "dtrak attribute run --projection flat": (2, "unknown projection 'flat': choose from sketch"),
    "dtrak attribute run --timesteps 2000": (2, "timesteps '2000': give a number from 1 to 1000"),
    "dtrak attribute run --parameters up_block9": (2, "no parameter's name matches 'up_block9': the model has conv_in"),
    # images
    "dtrak attribute run --queries nowhere": (2, "no images at 'nowhere': give digits:train"),
    "dtrak attribute run --queries digits:test": (2, "unknown source 'digits:test': choose from digits:train"),
    "dtrak attribute run --queries empty": (2, "no images in the folder empty: looked for"),
    "dtrak attribute run --queries pictures": (2, "cannot read pictures/bad.png: it is not an image"),
    "dtrak attribute run --queries keys.npz": (
        2,
        "keys.npz: 'images' is missing (there are: pictures), but must be",
    ),
    "dtrak attribute run --queries shape.npz": (2, "shape.npz: 'images' is uint8 [2, 8, 8, 4], but must be uint8"),
    "dtrak attribute run --queries floats.npz": (2, "floats.npz: 'images' is float64 [2, 8, 8], but must be uint8"),
    "dtrak attribute run --queries text.npz": (2, "text.npz is not an .npz file"),
    "dtrak attribute run --queries colour.png": (2, "colour.png is in colour"),
    # models
    f"dtrak {ELSEWHERE} --model nothing": (2, "no model at 'nothing': give a diffusers folder"),
    f"dtrak {ELSEWHERE} --model file": (2, "file is a file: give the folder of a diffusers model"),
    f"dtrak {ELSEWHERE} --model run": (2, "run is a run: its model is run/model"),
    f"dtrak {ELSEWHERE} --model pictures": (2, "pictures is not a diffusers model: it has no unet/config.json"),
    f"dtrak {ELSEWHERE} --model no-weights": (
        2,
        "no-weights has no weights: unet/ has neither .safetensors nor .bin",
    ),
    f"dtrak {ELSEWHERE} --model damaged": (2, "cannot load the model 'damaged': it is damaged"),
    f"dtrak {ELSEWHERE.replace('digits:train', 'colour.png')} --model run/model": (2, ": give grey images"),
    # places that cannot be written
    "dtrak train tiny.yaml --out file/run": (1, "cannot write file/run: Not a directory"),
    "dtrak train tiny.yaml --out file": (1, "cannot write file: "),
    "dtrak attribute run --out file/s.npz": (1, "cannot write file: File exists"),
    "dtrak attribute run --out pictures": (1, "cannot write pictures: it is a folder"),
    "dtrak attribute run --seed 1 --cache file": (1, "cannot write file/"),
}


@pytest.mark.parametrize("line", FAULTS)
def test_a_fault_is_one_line_with_what_would_be_right_and_changes_nothing(line: str, place: Path) -> None:
    before, (code, says) = content(place), FAULTS[line]
    outcome = dtrak(*line.split()[1:], cwd=place)
    assert says in outcome.error
    assert (outcome.code, outcome.out) == (code, "")
    assert content(place) == before


def test_images_of_another_size_are_resized_to_the_models(place: Path, tmp_path: Path) -> None:
    where = ("--model", "model16", "--out", tmp_path / "s.npz")
    colour = dtrak("attribute", "--train", "colour.png", "--queries", "colour.png", *where, cwd=place)
    assert ": give grey images" in colour.error
    asked = ("attribute", "--train", "large.png", "--queries", "pictures/good.png", *where)
    made = dtrak(*asked, "--projection-dim", 64, "--timesteps", 1, cwd=place)
    assert made.code == 0
    assert "pictures/good.png: images are resized to 16×16 pixels, for which model16 was made" in made.err
    assert dtrak(*asked, "--size", 16, "--projection-dim", 64, "--timesteps", 1, cwd=place).code == 0


@pytest.mark.parametrize("position", [0, 1, 3])
def test_debug_anywhere_on_the_line_adds_the_traceback_and_nothing_else(position: int, place: Path) -> None:
    arguments = ["generate", "untrained", "--count", "3"]
    arguments.insert(position, "--debug")
    outcome = dtrak(*arguments, cwd=place)
    assert outcome.code == 2
    lines = outcome.err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1].startswith("dtrak: untrained has no model yet")


def test_libraries_add_no_line_to_an_error(place: Path) -> None:
    """In a process that imports them after dtrak has silenced them."""
    outcome = dtrak_fresh(*ELSEWHERE.split(), "--model", "damaged", cwd=place)
    assert (outcome.code, outcome.out) == (2, "")
    assert "cannot load the model 'damaged'" in outcome.error


# NaN


def test_nan_is_named_by_image_and_timestep_and_leaves_the_scores_as_they_were(own_run: Path) -> None:
    good = (own_run / "model" / WEIGHTS).read_bytes()
    put_nan(own_run / "model")
    before = content(own_run)
    asked = ("attribute", own_run, "--timesteps", "7,300", "--parameters", "conv_out", "--cache")
    outcome = dtrak(*asked, own_run.parent / "cache", cwd=own_run)
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1] == "dtrak: the model's output is not finite for image 0 at timestep 7"
    assert "Traceback" not in outcome.err
    assert content(own_run) == before
    (own_run / "model" / WEIGHTS).write_bytes(good)
    assert dtrak(*asked, own_run.parent / "other", cwd=own_run).code == 0


def test_nan_in_a_drawn_picture_leaves_those_that_are_there(own_run: Path) -> None:
    good = (own_run / "model" / WEIGHTS).read_bytes()
    put_nan(own_run / "model")
    before = content(own_run / "generated")
    outcome = dtrak("generate", own_run, "--count", 2, "--seed", 6, cwd=own_run)
    assert outcome.code == 1
    assert outcome.error == "the model's output is not finite for the picture with seed 6 at timestep 800"
    assert content(own_run / "generated") == before
    (own_run / "model" / WEIGHTS).write_bytes(good)
    assert dtrak("generate", own_run, "--count", 2, "--seed", 6, cwd=own_run).code == 0
    assert load_images(str(own_run / "generated")).columns["seed"].tolist() == [6, 7]


# disks


def test_a_file_that_cannot_grow_is_named_and_nothing_is_left_of_it(recipe: MakeRecipe, tmp_path: Path) -> None:
    asked = ("train", recipe(), "--out", "run")
    outcome = dtrak(*asked, cwd=tmp_path, largest_file=20_000)
    assert (outcome.code, outcome.error) == (1, "cannot write run/checkpoints/step-000002: File too large")
    assert content(tmp_path / "run").keys() == {"recipe.yaml", "run.json"}
    assert dtrak(*asked, cwd=tmp_path).code == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of eight megabytes, where that can be had."""
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", disk], capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if mounted.returncode:
        pytest.skip("mounting is not allowed")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk_is_named_and_the_work_goes_on_once_there_is_room(
    small_disk: Path, recipe: MakeRecipe, tmp_path: Path, finished_run: Path
) -> None:
    """At first there is room for a checkpoint or two, then for all but the features of 4 MB, then for everything."""
    run, filler = small_disk / "run", small_disk / "filler"
    asked = (
        "run",
        recipe(attribution={"method": "d-trak", "projection_dim": 1024, "damping": "spectrum"}),
        "--out",
        run,
    )
    filler.write_bytes(bytes(8_180_000))
    outcome = dtrak(*asked, cwd=tmp_path)
    assert outcome.code == 1
    assert re.fullmatch(f"cannot write {run}/.*: No space left on device", outcome.error)
    checkpoints = list((run / "checkpoints").iterdir())
    assert checkpoints
    for path in checkpoints:
        assert (path / WEIGHTS).read_bytes() == (finished_run / "checkpoints" / path.name / WEIGHTS).read_bytes()

    filler.write_bytes(bytes(6_000_000))
    outcome = dtrak(*asked, cwd=tmp_path)
    assert outcome.code == 1
    assert re.search(r"dtrak: .*train-square-[0-9a-f]{16} needs 4 MB more, but its disk has \d MB\n$", outcome.err)
    assert (run / "model" / WEIGHTS).read_bytes() == (finished_run / "model" / WEIGHTS).read_bytes()
    assert len(load_images(str(run / "generated"))) == 4
    assert not list(run.rglob(".*.tmp"))

    filler.unlink()
    outcome = dtrak(*asked, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert (run / "report.html").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_named(recipe: MakeRecipe, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    outcome = dtrak("train", recipe(), "--out", folder / "run", cwd=tmp_path)
    assert (outcome.code, outcome.error) == (1, f"cannot write {folder / 'run'}: Permission denied")
    folder.chmod(0o700)
    assert dtrak("train", recipe(), "--out", folder / "run", cwd=tmp_path).code == 0


def test_features_of_another_model_are_not_used_and_kept(own_run: Path) -> None:
    weights = load_file(own_run / "model" / WEIGHTS)
    save_file({name: value * 1.01 for name, value in weights.items()}, own_run / "model" / WEIGHTS, {"format": "pt"})
    before, scores = content(own_run / "features"), (own_run / "scores.npz").read_bytes()
    del before["images.json"]  # what is remembered of image files grows
    outcome = dtrak("attribute", own_run, cwd=own_run)
    assert outcome.code == 0, outcome.err
    after = content(own_run / "features")
    assert before.items() <= after.items()
    assert len([name for name in after if name.startswith("train-")]) == 2 * len(
        [name for name in before if name.startswith("train-")]
    )
    assert (own_run / "scores.npz").read_bytes() != scores
