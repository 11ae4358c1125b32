"""What a model is told about an image: its own prompt, a template, a caption, or nothing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from dtrak import attribute
from dtrak.errors import UsageError
from dtrak.features.model_inputs import model_inputs
from dtrak.images.images import Images
from dtrak.models import load_model
from dtrak.models.prompts import prompts_of
from dtrak.runs.recipes import load_recipe
from tiny_stable_diffusion import trainer_of


def test_some_prompts_are_left_empty_in_training(painting_recipe: Path, paintings: Images) -> None:
    trainer = trainer_of(painting_recipe, paintings)
    rows = np.arange(len(paintings))
    own = trainer.inputs.condition(rows)["encoder_hidden_states"]
    prompts = trainer.model.prompts
    assert prompts is not None
    empty = prompts.encoder([""])["encoder_hidden_states"]

    def told(share: float) -> Tensor:
        trainer.settings = trainer.settings.model_copy(update={"prompt_dropout": share})
        return trainer.condition(rows, np.random.default_rng(0))["encoder_hidden_states"]

    assert torch.equal(told(0.0), own)
    assert torch.equal(told(1.0), empty.expand_as(own))
    some = told(0.5)
    is_empty = (some == empty).flatten(1).all(1)
    assert 3 <= is_empty.sum() <= len(paintings) - 3
    assert torch.equal(some[~is_empty], own[~is_empty])
    trainer.take_step()


@pytest.mark.parametrize(
    ("columns", "template", "expected"),
    [
        ({"caption": ["a cat", "a dog"]}, None, ["a cat", "a dog"]),
        ({"text": ["a cat", "a dog"]}, None, ["a cat", "a dog"]),
        ({"label": ["ukiyo_e", "baroque"]}, "a {class} painting", ["a ukiyo e painting", "a baroque painting"]),
        ({"label": ["x", "y"], "prompt": ["my own", None]}, "a {label}", ["my own", "a y"]),
        ({"artist": ["anna", None]}, "by {artist}", ["by anna", ""]),
        ({}, "by {artist}", ["", ""]),
        ({"caption": ["a cat in my_style", "b"]}, "{caption}", ["a cat in my_style", "b"]),
        ({"prompt": ["", "x"]}, "a photo of sks dog", ["", "x"]),
        ({}, None, ["", ""]),
    ],
)
def test_prompts_of_images(
    columns: dict[str, list[str | None]], template: str | None, expected: list[str], paintings: Images
) -> None:
    given = {name: np.array(values, dtype=object) for name, values in columns.items()}
    assert prompts_of(replace(paintings.select([0, 1]), columns=given), template) == expected


def test_images_without_a_prompt_are_named(base: Path, paintings: Images, capsys: pytest.CaptureFixture[str]) -> None:
    bare = replace(paintings.select([0, 1]), columns={})
    view = model_inputs(load_model(str(base)), bare)
    assert view.texts == ["", ""]
    assert f"No prompt for all images of {paintings.source}: the empty prompt is used" in capsys.readouterr().err
    model_inputs(load_model(str(base), prompt="by {artist}"), paintings)
    assert f"Prompts of 18 images of {paintings.source}: “by {{artist}}” filled in" in capsys.readouterr().err


def test_run_refuses_a_prompt_that_the_images_cannot_fill(painting_recipe: Path, tmp_path: Path) -> None:
    from dtrak.runs.run import Run

    text = painting_recipe.read_text().replace("{caption}", "by {painter}")
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"names the column 'painter', but the images of .* have artist, caption"):
        Run.create(tmp_path / "run", load_recipe(str(tmp_path / "recipe.yaml")))
    assert not (tmp_path / "run").exists()


def test_a_picture_with_another_prompt_has_features_of_its_own(base: Path, paintings: Images, tmp_path: Path) -> None:
    model, train = load_model(str(base)), paintings.first(6)
    found = []
    for prompt in ("a disc by anna", "", "a disc by anna"):
        asked = replace(paintings.select([7]), columns={"prompt": np.array([prompt], dtype=object)})
        scores = attribute(model, train, asked, "gradient-dot", timesteps=2, projection_dim=64, cache=tmp_path)
        found.append(scores.values)
    assert not np.allclose(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
