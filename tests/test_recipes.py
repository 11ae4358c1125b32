"""Recipes: what they say is checked field by field, and what was used can be written down and read again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrak.errors import UsageError
from dtrak.recipes import dump_recipe, load_recipe, recipe_names
from dtrak.runs import Run

MakeRecipe = Callable[..., Path]


def test_the_recipes_that_come_with_the_package_are_valid() -> None:
    assert recipe_names() == ["cifar2-small", "digits"]
    for name in recipe_names():
        assert load_recipe(name).name == name


def test_the_defaults_of_training_are_the_papers(recipe: MakeRecipe) -> None:
    training = load_recipe("cifar2-small").training
    assert (training.betas, training.weight_decay, training.warmup) == ((0.95, 0.999), 1e-6, 0.1)
    assert (training.batch_size, training.flip, training.checkpoints) == (128, True, 4)
    assert {load_recipe(name).model.unet["dropout"] for name in recipe_names()} == {0.1}
    assert load_recipe(str(recipe(training={"learning_rate": 1e-4}))).training.flip is False


def test_a_recipe_as_it_was_used_reads_the_same_again(tmp_path: Path) -> None:
    for name in recipe_names():
        path = tmp_path / f"{name}.yaml"
        path.write_text(dump_recipe(load_recipe(name)))
        assert load_recipe(str(path)) == load_recipe(name)


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("training", "epochs", 0),
        ("training", "epochs", "many"),
        ("training", "betas", [0.9, 1.0]),
        ("training", "warmup", 1.5),
        ("training", "speed", 9),
        ("generation", "steps", -1),
        ("data", "channels", 2),
        ("model", "schedule", {"beta_schedule": "quadratic"}),
        ("model", "schedule", {"prediction_type": "sample"}),
        ("attribution", "seed", -3),
    ],
)
def test_an_error_names_the_field_and_the_value(recipe: MakeRecipe, section: str, field: str, value: Any) -> None:
    path = recipe(**{section: {field: value}})
    wrong = next(iter(value.values())) if isinstance(value, dict) else value[-1] if isinstance(value, list) else value
    with pytest.raises(UsageError) as caught:
        load_recipe(str(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: {section}.{field}")
    assert repr(wrong) in message
    assert message.count("(it says") == 1


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("name: empty\nsummary: nothing\ndata: {}\n")
    with pytest.raises(UsageError, match=r"data\.train: Field required; model: Field required; training: Field req"):
        load_recipe(str(tmp_path / "empty.yaml"))


@pytest.mark.parametrize("content", ["", "just words", "[1, 2]"])
def test_what_is_no_mapping_is_no_recipe(tmp_path: Path, content: str) -> None:
    (tmp_path / "none.yaml").write_text(content)
    with pytest.raises(UsageError, match=r"none\.yaml: the recipe: Input should be a valid dictionary"):
        load_recipe(str(tmp_path / "none.yaml"))


def test_more_steps_of_ddim_than_timesteps_are_refused(recipe: MakeRecipe) -> None:
    path = recipe(generation={"steps": 51}, model={"schedule": {"num_train_timesteps": 50}, "unet": {}})
    with pytest.raises(UsageError, match=r"generation\.steps.*51.*50"):
        load_recipe(str(path))


@pytest.mark.parametrize(
    ("unet", "says"),
    [
        ({"block_out_chanels": [8, 8]}, "model.unet.block_out_chanels: diffusers' UNet2DModel has no such setting"),
        ({"block_out_channels": [8, 6], "norm_num_groups": 4}, "model.unet"),
        ({"down_block_types": ["DownBlock2D", "SideBlock2D"]}, "SideBlock2D"),
        ({"block_out_channels": 8}, "model.unet"),
    ],
)
def test_an_impossible_network_is_refused_before_anything_is_written(
    recipe: MakeRecipe, tmp_path: Path, unet: dict[str, Any], says: str
) -> None:
    loaded = load_recipe(str(recipe()))
    changed = loaded.model_copy(update={"model": loaded.model.model_copy(update={"unet": loaded.model.unet | unet})})
    with pytest.raises(UsageError) as caught:
        Run.create(tmp_path / "run", changed)
    assert says in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_images_that_the_network_cannot_halve_are_refused(recipe: MakeRecipe, tmp_path: Path) -> None:
    np.savez(tmp_path / "odd.npz", images=np.zeros((3, 9, 9), np.uint8))
    loaded = load_recipe(str(recipe(data={"train": str(tmp_path / "odd.npz"), "validation": None})))
    with pytest.raises(UsageError, match=r"2 blocks halve the images 1 times, but 9×9.* data\.size a multiple of 2"):
        Run.create(tmp_path / "run", loaded)
