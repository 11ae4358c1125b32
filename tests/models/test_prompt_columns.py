"""A prompt's template names columns that are there, and does nothing else."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commands import dtrak
from dtrak.images.images import Images
from dtrak.models.prompts import prompts_of
from dtrak.runs.recipes import load_recipe
from dtrak.runs.run import Run
from pictures_on_disk import refused

BOMBS = ["{label:>999999999}", "{label!r}", "{label:{label}}", "{}", "{", "a } b", "{:>9}", "{!r}"]
NO_COLUMNS = ["{artis}", "{0}", "{label.__class__}", "{artist[0]}", "{artist.__init__.__globals__}"]


@pytest.mark.parametrize("template", [*BOMBS, *NO_COLUMNS])
def test_a_recipe_with_such_a_prompt_is_refused_before_anything_is_written(
    painting_recipe: Path, template: str, tmp_path: Path
) -> None:
    changes = {"model": {"prompt": template}}
    run = Run(tmp_path / "run", load_recipe(str(painting_recipe), changes=changes))
    message = refused(run.check_recipe, repr(template))
    assert ("have artist, caption" in message) == (template in NO_COLUMNS)
    refused(lambda: Run.create(run.folder, run.recipe), repr(template))
    assert not run.folder.exists()


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("by {artis}", "names the column 'artis', but the images of {train} have artist, caption"),
        ("{artist:>99999999999}", "there must be a column's name and nothing else"),
    ],
)
def test_such_a_prompt_is_refused_at_the_command_line(
    painting_recipe: Path, base: Path, template: str, said: str, tmp_path: Path
) -> None:
    train = painting_recipe.parent / "train"
    outcome = dtrak(
        *("attribute", "--model", base, "--train", train, "--queries", painting_recipe.parent / "validation"),
        *("--prompt", template, "--out", "scores.npz"),
        cwd=tmp_path,
    )
    assert outcome.code == 2
    assert repr(template) in outcome.error
    assert said.format(train=train) in outcome.error
    assert not (tmp_path / "scores.npz").exists()


def test_a_recipe_of_such_a_prompt_is_refused_at_the_command_line(painting_recipe: Path, tmp_path: Path) -> None:
    text = painting_recipe.read_text().replace("{caption}", "by {artis}")
    (tmp_path / "recipe.yaml").write_text(text)
    outcome = dtrak("train", "recipe.yaml", "--out", "run", cwd=tmp_path)
    assert outcome.code == 2
    assert "tiny-paintings: model.prompt 'by {artis}' names the column 'artis'" in outcome.error
    assert not (tmp_path / "run").exists()


def test_what_a_column_says_is_not_read_as_a_template(paintings: Images) -> None:
    columns = {"my column.x": np.array(["{artist}", "{0!r:>99}"]), "label": np.array(["ukiyo_e", "b"])}
    images = replace(paintings.select([0, 1]), columns=columns)
    found = prompts_of(images, "{{a}} {my column.x} {class}")
    assert found == ["{a} {artist} ukiyo e", "{a} {0!r:>99} b"]


def test_images_with_prompts_of_their_own_need_no_column(paintings: Images, painting_recipe: Path) -> None:
    from dtrak.models.prompts import check_columns

    own = replace(paintings.select([0, 1]), columns={"prompt": np.array(["one", "two"])})
    check_columns("by {artist}", own, "the prompt")
    some = replace(own, columns={"prompt": np.array(["one", None], dtype=object)})
    refused(lambda: check_columns("by {artist}", some, "the prompt"), "'artist'", "have prompt")


def test_the_check_of_a_recipe_reads_no_weights(painting_recipe: Path, base: Path, tmp_path: Path) -> None:
    """So that a plan can be checked where the pipeline is only described."""
    for part in ("unet", "vae", "text_encoder", "scheduler"):
        (tmp_path / "base" / part).mkdir(parents=True)
        for file in (base / part).glob("*config.json"):
            (tmp_path / "base" / part / file.name).write_bytes(file.read_bytes())
    changes = {"model": {"base": str(tmp_path / "base")}}
    Run(tmp_path / "run", load_recipe(str(painting_recipe), changes=changes)).check_recipe()
    lora = {"rank": 4, "alpha": 4, "targets": ["nothing"]}
    wrong = load_recipe(str(painting_recipe), changes={"model": changes["model"] | {"lora": lora}})
    refused(Run(tmp_path / "run", wrong).check_recipe, "model.lora.targets", "nothing")
    odd = load_recipe(str(painting_recipe), changes=changes | {"data": {"size": 15}})
    refused(Run(tmp_path / "run", odd).check_recipe, "15×15", "--size 16")
