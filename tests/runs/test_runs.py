"""A run's folder: it holds all that is needed to make it again, and is not mixed up with another."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from commands import dtrak
from conftest import tiny_recipe
from dtrak.errors import UsageError
from dtrak.images.images import load_images
from dtrak.runs.recipes import load_recipe
from dtrak.runs.run import Run, versions

MakeRecipe = Callable[..., Path]
WEIGHTS = "model/unet/diffusion_pytorch_model.safetensors"


def test_a_run_made_again_from_its_own_recipe_is_the_same(finished_run: Path, tmp_path: Path) -> None:
    outcome = dtrak("run", finished_run / "recipe.yaml", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    again = tmp_path / "runs" / "tiny"
    assert (again / WEIGHTS).read_bytes() == (finished_run / WEIGHTS).read_bytes()
    for name in ("recipe.yaml", "run.json"):
        assert (again / name).read_text() == (finished_run / name).read_text()
    with np.load(again / "scores.npz") as new, np.load(finished_run / "scores.npz") as old:
        assert set(new) == set(old)
        assert np.array_equal(new["values"], old["values"])


def test_a_run_on_a_subset_made_again_from_its_own_recipe_is_the_same(recipe: MakeRecipe, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("\n".join(map(str, range(0, 900, 3))))
    assert dtrak("train", recipe(), "--out", "half", "--subset", "ids.txt", cwd=tmp_path).code == 0
    (tmp_path / "ids.txt").unlink()
    (tmp_path / "elsewhere").mkdir()
    outcome = dtrak("train", "../half/recipe.yaml", "--out", "again", cwd=tmp_path / "elsewhere")
    assert outcome.code == 0, outcome.err
    again = tmp_path / "elsewhere" / "again"
    assert (again / WEIGHTS).read_bytes() == (tmp_path / "half" / WEIGHTS).read_bytes()
    assert (again / "subset.txt").read_text() == (tmp_path / "half" / "subset.txt").read_text()


def test_versions_and_seeds_are_written_down(finished_run: Path) -> None:
    assert json.loads((finished_run / "run.json").read_text()) == versions()
    written = yaml.safe_load((finished_run / "recipe.yaml").read_text())
    assert [written[section]["seed"] for section in ("training", "generation", "attribution")] == [0, 0, 0]
    asked = Run.open(finished_run).asked
    assert asked is not None
    assert asked["given"]["settings"]["seed"] == 0


def test_another_recipe_is_refused_by_the_field_that_differs(own_run: Path, tmp_path: Path) -> None:
    path = tiny_recipe(tmp_path / "other.yaml", training={"epochs": 3})
    before = {file: file.stat().st_mtime_ns for file in own_run.rglob("*")}
    outcome = dtrak("run", path, "--out", own_run, cwd=tmp_path)
    assert outcome.code == 2
    assert outcome.error == f"{own_run} was made with training.epochs 2, not 3: give another --out, or remove it"
    assert {file: file.stat().st_mtime_ns for file in own_run.rglob("*")} == before


def test_what_no_model_depends_on_may_change(own_run: Path, tmp_path: Path) -> None:
    weights = {file: file.stat().st_mtime_ns for file in (own_run / "model").rglob("*")}
    path = tiny_recipe(tmp_path / "other.yaml", generation={"count": 2}, attribution={"timesteps": 3, "method": "trak"})
    assert dtrak("run", path, "--out", own_run, cwd=tmp_path).code == 0
    assert {file: file.stat().st_mtime_ns for file in (own_run / "model").rglob("*")} == weights
    assert Run.open(own_run).recipe.generation.count == 2
    assert len(list((own_run / "generated").glob("*.png"))) == 2
    asked = Run.open(own_run).asked
    assert asked is not None
    assert asked["given"]["settings"]["timesteps"] == 3


def test_a_setting_of_the_network_that_only_one_recipe_has_is_named(own_run: Path) -> None:
    loaded = load_recipe(str(own_run / "recipe.yaml"))
    model = loaded.model.model_copy(update={"unet": loaded.model.unet | {"act_fn": "relu"}})
    with pytest.raises(UsageError, match=r"made with model\.unet\.act_fn None, not relu"):
        Run.create(own_run, loaded.model_copy(update={"model": model}))


def test_another_subset_is_refused(recipe: MakeRecipe, tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("1\n2\n3\n4\n")
    (tmp_path / "others.txt").write_text("5\n6\n")
    loaded = load_recipe(str(recipe()))
    Run.create(tmp_path / "run", loaded, str(tmp_path / "some.txt"))
    assert len(Run.create(tmp_path / "run", loaded, str(tmp_path / "some.txt")).train_images) == 4
    for subset, named in ((str(tmp_path / "others.txt"), "others.txt"), (None, "all images")):
        with pytest.raises(UsageError, match=f"was made with another subset than .*{named}"):
            Run.create(tmp_path / "run", loaded, subset)


def test_a_recipe_that_a_later_version_gave_a_new_default_is_still_the_same(own_run: Path) -> None:
    written = yaml.safe_load((own_run / "recipe.yaml").read_text())
    del written["training"]["gradient_clip"], written["data"]["subset"]
    (own_run / "recipe.yaml").write_text(yaml.safe_dump(written))
    assert Run.create(own_run, load_recipe(str(tiny_recipe(own_run.parent / "tiny.yaml")))).is_trained


def test_nothing_is_written_for_images_that_are_not_there(recipe: MakeRecipe, tmp_path: Path) -> None:
    outcome = dtrak("train", recipe(data={"train": "nowhere.npz"}), "--out", "run", cwd=tmp_path)
    assert outcome.code == 2
    assert "no images at 'nowhere.npz'" in outcome.error
    assert not (tmp_path / "run").exists()


# queries


def test_queries_of_the_models_own_shape_stay_as_they_are(finished_run: Path) -> None:
    run, source = Run.open(finished_run), str(finished_run / "generated")
    plain, asked = load_images(source), run.query_images(source)
    assert np.array_equal(asked.pixels(range(4)), plain.pixels(range(4)))


def test_queries_of_any_size_are_brought_to_that_of_the_training_images(finished_run: Path, tmp_path: Path) -> None:
    for index, size in enumerate([(16, 16), (40, 24), (8, 8)]):
        Image.new("L", size, 30 * index).save(tmp_path / f"{index}.png")
    images = Run.open(finished_run).query_images(str(tmp_path))
    assert images.shape == (1, 8, 8)
    assert images.pixels(range(3)).mean((1, 2, 3)).tolist() == [0, 30, 60]


def test_a_recipes_crop_and_size_hold_for_queries_but_not_for_drawn_ones(recipe: MakeRecipe, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "train.npz", images=pixels)
    np.savez(tmp_path / "drawn.npz", images=pixels[:, :16, :16])
    source = str(tmp_path / "train.npz")
    run = Run(tmp_path, load_recipe(str(recipe(data={"train": source, "crop": 24, "size": 16}))))
    assert run.train_images.shape == (3, 16, 16)
    assert np.array_equal(run.query_images(source).pixels([0]), run.train_images.pixels([0]))
    assert np.array_equal(run.query_images(str(tmp_path / "drawn.npz")).pixels([0]), pixels[:1, :16, :16])
