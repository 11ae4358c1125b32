"""Recipes that are wrong, hostile or no recipes at all: one line, before anything is written, run or dry run alike."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands import dtrak
from conftest import TINY
from dtrak.errors import UsageError
from dtrak.runs.recipes import Recipe, load_recipe
from dtrak.runs.recipes.reading import MOST_BYTES
from tiny_stable_diffusion import save_recipe

MakeRecipe = Callable[..., Path]


def laughs(levels: int = 12) -> str:
    """Each level is ten of the one before: a few hundred letters, 10¹² words."""
    lines = ["a0: &a0 [ha, ha, ha, ha, ha, ha, ha, ha, ha, ha]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


def merges(levels: int = 12) -> str:
    """The same with merged mappings, which PyYAML would write out."""
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


TEXTS = {
    "cycle": ("name: x\nmodel: &model {unet: {again: *model}}\n", "is not a recipe: its brackets or aliases are more"),
    "list in itself": ("&list [*list]\n", "is not a recipe: its brackets or aliases are more than 32 deep"),
    "deep": ("name: " + "[" * 10_000 + "]" * 10_000 + "\n", "more than 32 deep"),
    "deep, not closed": ("{a: " * 100_000, "more than 32 deep"),
    "laughs": (laughs(), "with aliases replaced, it has more than 20,000 values"),
    "merges": (merges(), "with aliases replaced, it has more than 20,000 values"),
    "no such date": ("name: 2020-99-99\n", "is not YAML: month must be in 1..12"),
    "no such number": ("name: " + "9" * 5000 + "\n", "is not YAML: Exceeds the limit"),
    "hexadecimal": ("name: 0x" + "f" * 5000 + "\n", "name: Input should be a valid string (it says a number of thousa"),
    "tab": ("name:\tx\n\tdata: 1\n", "is not YAML in line 1"),
    "code": ("!!python/object/apply:os.system ['touch owned']\n", "could not determine a constructor for the tag"),
    "two": ("name: a\n---\nname: b\n", "is not YAML in line 2: but found another document"),
    "words": ("root:x:0:0\n", "the recipe: Input should be a valid dictionary"),
    "control": ("name: \x01\n", "is not YAML: unacceptable character #x0001"),
    "scale of text": ("name: x\nsmall: tiny\n", "small: it must hold the fields that differ (it says 'tiny')"),
}


@pytest.mark.parametrize("what", TEXTS)
def test_what_is_no_recipe_is_one_line(what: str, tmp_path: Path) -> None:
    text, says = TEXTS[what]
    (tmp_path / "bad.yaml").write_text(text)
    outcome = dtrak("run", "bad.yaml", cwd=tmp_path)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.error.startswith("bad.yaml")
    assert says in outcome.error
    assert len(outcome.error) < 1000
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]


def test_what_is_no_file_is_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(bytes(range(128, 256)))
    (tmp_path / "large").write_bytes(b"a" * (MOST_BYTES + 1))
    (tmp_path / "around").symlink_to("around")
    for name, says in {
        "pipe": "pipe is not a file that holds a recipe: it is a pipe",
        "folder": "folder is a folder, not a recipe: give a YAML file",
        "/dev/zero": "/dev/zero is not a file that holds a recipe",
        "binary": "binary is not a recipe: 'utf-8' codec can't decode",
        "large": "large is not a recipe: it has 1,048,577 bytes",
        "around": "unknown recipe 'around': choose from",
        "x" * 5000: "unknown recipe 'xxxxxxxxxxxx...xxxxxxxxxxxxx': choose from",
        "": "unknown recipe '': choose from",
    }.items():
        outcome = dtrak("run", name, cwd=tmp_path)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.error.startswith(says)
    with pytest.raises(UsageError, match="unknown recipe"):
        load_recipe("a\0b")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_recipe_that_may_not_be_read_is_named(recipe: MakeRecipe, tmp_path: Path) -> None:
    recipe().chmod(0)
    assert dtrak("run", "recipe.yaml", cwd=tmp_path).error == "cannot read recipe.yaml: Permission denied"


def test_only_recipes_are_printed(recipe: MakeRecipe, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("user: password\n")
    for name in ("/etc/passwd", "secret.txt", "/etc/hostname"):
        outcome = dtrak("recipes", name, cwd=tmp_path)
        assert (outcome.code, outcome.out) == (2, "")
        assert "root:" not in outcome.error
    assert dtrak("recipes", recipe(), cwd=tmp_path).out == recipe().read_text()


@pytest.mark.parametrize("name", ["../above", "a/b", "/tmp/x", "..", ".", "", "a\\b", "a\nb", "a\0b", " a", "ü" * 51])
def test_a_recipes_name_stays_inside_runs(name: str, tmp_path: Path, recipe: MakeRecipe) -> None:
    recipe()
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({**TINY, "name": name}))
    for more in ((), ("--dry-run",)):
        outcome = dtrak("run", "recipe.yaml", *more, cwd=tmp_path)
        assert (outcome.code, outcome.out) == (2, "")
        assert "give another name, or --out" in outcome.error or "shorten it, or give --out" in outcome.error
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]
    assert not (tmp_path.parent / "above").exists()


# A mistake anywhere in a recipe is found before anything is trained, and by a dry run as well.

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"attribution": {"parameters": "("}}, "the parameter pattern '(' is not a regular expression"),
    (
        {"attribution": {"parameters": "no_such_layer"}},
        "no parameter's name matches 'no_such_layer': the model has",
    ),
    ({"attribution": {"method": "trick"}}, "'trick'"),
    ({"attribution": {"method": "trak", "objective": "square"}}, "trak does not take the objective 'square'"),
    ({"attribution": {"objective": "cube"}}, "unknown objective 'cube'"),
    ({"attribution": {"damping": "much"}}, "attribution.damping: give auto"),
    ({"attribution": {"damping": -1}}, "attribution.damping: give auto"),
    ({"attribution": {"projection": "flat"}}, "unknown projection 'flat'"),
    ({"attribution": {"noise": "loud"}}, "unknown noise 'loud': choose from shared, per-image"),
    ({"attribution": {"timesteps": 10**12}}, "timesteps '1000000000000': give a number from 1 to 1000"),
    ({"attribution": {"timesteps": "0,1000"}}, "timesteps '0,1000': a list holds different numbers from 0 to 999"),
    ({"attribution": {"timesteps": "1," * 10**5}}, "a list holds different numbers from 0 to 999"),
    ({"attribution": {"timesteps": 1000, "draws": 10**6}}, "their noises take 456.0 GB, but there are"),
    ({"attribution": {"method": "datamodel"}}, "attribution.method datamodel learns from retrained models"),
    ({"attribution": {"seed": 2**63}}, "attribution.seed: it must be at most 9,223,372,036,854,775,807"),
    (
        {"attribution": {"projection_dim": 10**9}},
        "attribution.projection_dim: it must be at most 1,048,576",
    ),
    ({"evaluation": {"timesteps": 2000}}, "timesteps '2000': give a number from 1 to 1000"),
    (
        {"evaluation": {"fraction": 0.0001}},
        "evaluation.fraction 0.0001: a subset of 1000 images must hold at least one of them",
    ),
    (
        {"evaluation": {"subsets": 10**9}},
        "evaluation.subsets: Input should be less than or equal to 10000 (it",
    ),
    (
        {"generation": {"count": 10**9}},
        "generation.count: Input should be less than or equal to 1000000 (it",
    ),
    ({"generation": {"seed": 2**63 - 1}}, "generation.seed: Input should be less than or equal to 92233720368537"),
    ({"training": {"seed": 10**30}}, "training.seed: Input should be less than or equal to 9223372036854775807"),
    (
        {"training": {"epochs": 10**9}},
        "training.epochs: Input should be less than or equal to 1000000 (it",
    ),
    ({"training": {"checkpoints": 10**9}}, "training.checkpoints: Input should be less than or equal to 1000"),
    ({"training": {"learning_rate": float("inf")}}, "training.learning_rate: Input should be a finite number"),
    ({"data": {"size": 10**6}}, "data.size: Input should be less than or equal to 8192 (it says 1000000)"),
    ({"data": {"validation": "gone.npz"}}, "no images at 'gone.npz'"),
    ({"data": {"train": "gone.npz"}}, "no images at 'gone.npz'"),
    ({"data": {"select_validation": {"count": 900}}}, "has 797 images to select from, but select.count is 900"),
]


def unet(**changes: Any) -> dict[str, Any]:
    return {"model": {"unet": {**TINY["model"]["unet"], **changes}}}


NETWORKS: list[tuple[dict[str, Any], str]] = [
    (unet(block_out_channels=[]), "model.unet.block_out_channels: List should have at least 1 item"),
    (unet(block_out_channels=[0, 8]), "model.unet.block_out_channels.0: Input should be greater than 0 (it says 0)"),
    (
        unet(block_out_channels=[10**9, 8]),
        "block_out_channels.0: Input should be less than or equal to 65536",
    ),
    (
        unet(block_out_channels=["8", 8]),
        "block_out_channels.0: Input should be a valid integer (it says '8')",
    ),
    (unet(norm_num_groups=0), "model.unet.norm_num_groups: Input should be greater than 0 (it says 0)"),
    (unet(norm_num_groups=-4), "model.unet.norm_num_groups: Input should be greater than 0 (it says -4)"),
    (unet(layers_per_block=10**9), "model.unet.layers_per_block: Input should be less than or equal to 64"),
    (unet(layers_per_block=0), "model.unet.layers_per_block: Input should be greater than 0"),
    (unet(attention_head_dim=0), "model.unet.attention_head_dim: Input should be greater than 0"),
    (
        unet(num_train_timesteps=10**12),
        "model.unet.num_train_timesteps: it must be at most 65,536 (it says 1",
    ),
    (unet(time_embedding_type=7), "model.unet: no U-Net can be built from it"),
    (unet(down_block_types=["DownBlock2D", "DownBlock2D"]), "model.unet: no U-Net can be built from it"),
    (
        {"model": {**unet()["model"], "schedule": {"num_train_timesteps": 10**12}}},
        "timesteps: Input should be",
    ),
]


@pytest.mark.parametrize(("changes", "says"), MISTAKES + NETWORKS, ids=lambda one: "" if isinstance(one, str) else None)
def test_a_mistake_is_found_before_anything_is_done(
    changes: dict[str, Any], says: str, recipe: MakeRecipe, tmp_path: Path
) -> None:
    recipe(**changes)
    for command in (("run", "recipe.yaml", "--dry-run"), ("run", "recipe.yaml")):
        outcome = dtrak(*command, cwd=tmp_path)
        assert (outcome.code, outcome.out) == (2, ""), command
        assert says in outcome.error
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]


def test_a_model_that_does_not_fit_is_refused_by_its_layout(recipe: MakeRecipe, tmp_path: Path) -> None:
    """A dry run says so in its last line: it may be for another machine."""
    recipe(**unet(block_out_channels=[65536], norm_num_groups=8))
    for command in (("run", "recipe.yaml"), ("train", "recipe.yaml", "--out", "run")):
        outcome = dtrak(*command, cwd=tmp_path)
        assert (outcome.code, outcome.out) == (2, "")
        assert "tiny: training its model takes " in outcome.error
        assert "but cpu has " in outcome.error
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]
    assert "LESS than is needed for train" in dtrak("run", "recipe.yaml", "--dry-run", cwd=tmp_path).out


def test_train_finds_a_mistake_in_a_later_step(recipe: MakeRecipe, tmp_path: Path) -> None:
    recipe(attribution={"parameters": "("})
    outcome = dtrak("train", "recipe.yaml", "--out", "run", cwd=tmp_path)
    assert (outcome.code, outcome.out) == (2, "")
    assert "'(' is not a regular expression" in outcome.error
    assert not (tmp_path / "run").exists()


def test_a_dry_run_refuses_the_folder_that_a_run_would(finished_run: Path, recipe: MakeRecipe, tmp_path: Path) -> None:
    recipe(training={"epochs": 77})
    for more in ((), ("--dry-run",)):
        outcome = dtrak("run", "recipe.yaml", "--out", finished_run, *more, cwd=tmp_path)
        assert (outcome.code, outcome.out) == (2, "")
        assert f"{finished_run} was made with training.epochs 2, not 77" in outcome.error


def test_a_dry_run_refuses_a_prompt_with_no_such_column(base: Path, tmp_path: Path) -> None:
    path = save_recipe(tmp_path, base)
    content = yaml.safe_load(path.read_text())
    content["model"]["prompt"] = "a {artis} painting"
    path.write_text(yaml.safe_dump(content))
    for more in ((), ("--dry-run",)):
        outcome = dtrak("run", path, "--out", "run", *more, cwd=tmp_path)
        assert (outcome.code, outcome.out) == (2, "")
        assert "names the column 'artis'" in outcome.error
    assert not (tmp_path / "run").exists()


def test_names_that_are_too_long_are_one_line(recipe: MakeRecipe, tmp_path: Path) -> None:
    recipe()
    long = "x" * 300
    for command in (
        ("run", "recipe.yaml", "--out", long),
        ("train", "recipe.yaml", "--out", long),
        ("report", long),
        ("generate", long),
        ("attribute", long),
        ("evaluate", "lds", long),
        ("evaluate", "lds", "--benchmark", long),
    ):
        outcome = dtrak(*command, cwd=tmp_path)
        assert outcome.code in (1, 2)
        assert outcome.out == ""
        assert long in outcome.error
        assert "Errno" not in outcome.error
        assert "--debug" not in outcome.error
    assert dtrak("run", "recipe.yaml", "--out", long, "--dry-run", cwd=tmp_path).code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]


def test_a_recipe_of_earlier_versions_reads_as_it_did() -> None:
    """The order of a network's settings is part of the names of counterfactual models that were kept."""
    settings = {"layers_per_block": 1, "block_out_channels": [8, 8], "sample_size": None, "dropout": 0}
    content = {**TINY, "model": {"unet": settings, "schedule": {}}}
    dumped = Recipe.model_validate(content).model_dump(mode="json")["model"]["unet"]
    assert list(dumped.items()) == list(settings.items())
