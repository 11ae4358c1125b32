"""What counts as done in a run is there whole; and what is retrained is the model that the recipe describes."""

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

from commands import dtrak
from dtrak.models import save_model
from dtrak.runs.recipes import load_recipe
from dtrak.runs.run import Run
from pictures_on_disk import refused

WEIGHTS = "model/unet/diffusion_pytorch_model.safetensors"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def change_recipe(run: Path, section: str, **changes: object) -> None:
    content = yaml.safe_load((run / "recipe.yaml").read_text())
    content[section] |= changes
    (run / "recipe.yaml").write_text(yaml.safe_dump(content))


# a model that is not the recipe's


@pytest.mark.parametrize(
    ("command", "words"), [("lds", ["--subsets", 4, "--seeds", 1]), ("counterfactual", ["--method", "random"])]
)
def test_a_run_with_another_model_than_its_recipes_is_not_evaluated(
    own_run: Path, command: str, words: list[object]
) -> None:
    unet = json.loads((own_run / "model" / "unet" / "config.json").read_text())
    other = UNet2DModel.from_config(unet | {"block_out_channels": [16]})
    shutil.rmtree(own_run / "model")
    DDPMPipeline(other, DDPMScheduler()).save_pretrained(own_run / "model")
    outcome = dtrak("evaluate", command, own_run, *words, cwd=own_run.parent)
    assert outcome.code == 2
    said = f"{own_run}/model has unet.block_out_channels [16], but {own_run}/recipe.yaml makes it [8]"
    assert outcome.error.startswith(said)
    assert not (own_run / "benchmark").exists()


def test_every_setting_of_a_network_and_its_schedule_counts(own_run: Path) -> None:
    run = Run.open(own_run)
    run.check_model_is_the_recipes(run.model())
    model = yaml.safe_load((own_run / "recipe.yaml").read_text())["model"]
    change_recipe(own_run, "model", unet=model["unet"] | {"dropout": 0.2})
    run = Run.open(own_run)
    refused(lambda: run.check_model_is_the_recipes(run.model()), "unet.dropout 0.1,", "makes it 0.2")
    change_recipe(own_run, "model", unet=model["unet"], schedule=model["schedule"] | {"beta_end": 0.03})
    run = Run.open(own_run)
    refused(lambda: run.check_model_is_the_recipes(run.model()), "schedule.beta_end 0.02,", "makes it 0.03")


def test_a_lora_must_be_the_recipes(painting_recipe: Path, base: Path, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", load_recipe(str(painting_recipe)))
    save_model(run.new_model(), run.folder / "model")
    assert run.is_trained
    run.check_model_is_the_recipes(run.model())
    lora = run.recipe.model.model_dump()["lora"]
    elsewhere = Path(shutil.copytree(base, tmp_path / "base"))
    for changes, said in (
        ({"lora": lora | {"rank": 2}}, "lora.rank 4,"),
        ({"lora": lora | {"alpha": 2}}, "lora.alpha 8,"),
        ({"lora": lora | {"targets": ["to_q"]}}, "to_k"),
        ({"prompt": "by {artist}"}, "prompt {caption},"),
        ({"base": str(elsewhere)}, f"base {base},"),
    ):
        content = yaml.safe_load((run.folder / "recipe.yaml").read_text())
        (tmp_path / "changed.yaml").write_text(yaml.safe_dump(content | {"model": content["model"] | changes}))
        changed = Run(run.folder, load_recipe(str(tmp_path / "changed.yaml")))
        refused(lambda changed=changed: changed.check_model_is_the_recipes(run.model()), said)  # type: ignore[misc]
    shutil.rmtree(run.folder / "model")
    shutil.copytree(base, run.folder / "model")
    refused(lambda: run.check_model_is_the_recipes(run.model()), "stable-diffusion without a LoRA")


# what counts as done


@pytest.mark.parametrize("damage", ["empty", "truncated", "a pipe", "checkpoint"])
def test_a_model_that_cannot_be_opened_is_trained_again(own_run: Path, finished_run: Path, damage: str) -> None:
    whole = contents(finished_run / "model")
    weights = own_run / WEIGHTS
    if damage == "empty":
        shutil.rmtree(own_run / "model")
        (own_run / "model").mkdir()
    elif damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "a pipe":
        weights.unlink()
        os.mkfifo(weights)
    else:
        step = next((own_run / "checkpoints").iterdir())
        shutil.rmtree(step)
        step.mkdir()
    if damage != "checkpoint":
        outcome = dtrak("generate", own_run, cwd=own_run)
        assert outcome.code == 2
        assert f"{own_run}/model is empty or damaged: `dtrak train {own_run}/recipe.yaml" in outcome.error
    outcome = dtrak("train", own_run / "recipe.yaml", "--out", own_run, cwd=own_run)
    assert outcome.code == 0, outcome.err
    assert contents(own_run / "model") == whole
    assert contents(own_run / "checkpoints") == contents(finished_run / "checkpoints")


def test_checkpoints_that_were_removed_are_not_missed(own_run: Path) -> None:
    shutil.rmtree(own_run / "checkpoints")
    assert Run.open(own_run).is_trained


@pytest.mark.parametrize("damage", [b"", b"not a picture", 100])
def test_damaged_pictures_are_drawn_again(own_run: Path, finished_run: Path, damage: bytes | int) -> None:
    picture = own_run / "generated" / "seed-00001.png"
    picture.write_bytes(damage if isinstance(damage, bytes) else picture.read_bytes()[:damage])
    outcome = dtrak("generate", own_run, cwd=own_run)
    assert outcome.code == 0, outcome.err
    assert contents(own_run / "generated") == contents(finished_run / "generated")


def test_a_damaged_picture_of_a_killed_process_is_drawn_again(own_run: Path, finished_run: Path) -> None:
    (own_run / "generated").rename(own_run / "generated-unfinished")
    (own_run / "generated-unfinished" / "seed-00002.png").write_bytes(b"")
    assert dtrak("generate", own_run, cwd=own_run).code == 0
    assert contents(own_run / "generated") == contents(finished_run / "generated")


def test_a_record_of_drawing_that_is_no_text_is_made_again(own_run: Path, finished_run: Path) -> None:
    (own_run / "generated" / "made-by.json").write_bytes(b"\xff\xfe\x00")
    outcome = dtrak("generate", own_run, cwd=own_run)
    assert outcome.code == 0, outcome.err
    assert contents(own_run / "generated") == contents(finished_run / "generated")


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
def test_runs_with_names_that_no_folder_can_have(name: str) -> None:
    refused(lambda: Run.open(name), "is not a run")
