"""A model that was trained elsewhere becomes a run, which every command takes from any folder."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from PIL import Image

from commands import dtrak
from dtrak.attribution.scores import load_scores
from dtrak.images.images import load_images
from dtrak.runs.recipes import Recipe
from dtrak.runs.run import Run
from pictures_on_disk import save_image
from tiny_pipelines import save_tiny
from tiny_stable_diffusion import save_paintings

SCORING = ["--timesteps", "2", "--projection-dim", "512"]


@pytest.fixture
def unet(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    network = UNet2DModel(
        sample_size=8,
        block_out_channels=(4, 8),
        layers_per_block=1,
        down_block_types=("DownBlock2D",) * 2,
        up_block_types=("UpBlock2D",) * 2,
        norm_num_groups=2,
    )
    DDPMPipeline(network, DDPMScheduler(beta_schedule="scaled_linear")).save_pretrained(tmp_path / "unet")
    return tmp_path / "unet"


def test_a_run_of_a_model(unet: Path, tmp_path: Path) -> None:
    """Images of another size are resized to the model's; paths are valid in any folder."""
    save_paintings(tmp_path / "train", 6)
    save_paintings(tmp_path / "outputs", 2, seed=1)
    Image.new("RGB", (20, 16)).save(tmp_path / "outputs" / "wide.png")
    lines = (tmp_path / "outputs" / "metadata.jsonl").read_text() + json.dumps({"file_name": "wide.png"}) + "\n"
    (tmp_path / "outputs" / "metadata.jsonl").write_text(lines)
    words = ["attribute", "--model", "unet", "--train", "train", "--queries", "outputs", *SCORING]
    outcome = dtrak(*words, "--run", "mine", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert "train: images are resized to 8×8 pixels, for which unet was made" in outcome.err
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    for command in (["report", tmp_path / "mine"], ["credit", tmp_path / "mine", "--by", "artist"]):
        outcome = dtrak(*command, cwd=elsewhere)
        assert outcome.code == 0, outcome.err
    assert "trained elsewhere" in (tmp_path / "mine" / "report.html").read_text()
    again = dtrak("attribute", tmp_path / "mine", "--queries", tmp_path / "outputs", *SCORING, cwd=elsewhere)
    assert again.code == 0, again.err
    alone = dtrak(*words, "--out", "scores.npz", cwd=tmp_path)
    assert alone.code == 0, alone.err
    found, expected = (load_scores(tmp_path / name)["step-trak"].values for name in ("mine/scores.npz", "scores.npz"))
    np.testing.assert_array_equal(found, expected)
    drawn = dtrak("generate", tmp_path / "mine", "--count", "2", cwd=elsewhere)
    assert drawn.code == 0, drawn.err
    refused = dtrak("evaluate", "lds", tmp_path / "mine", "--queries", "generated", cwd=elsewhere)
    assert refused.code == 2
    assert "was trained elsewhere, and nobody knows how" in refused.error
    assert not (tmp_path / "mine" / "recipe.yaml").exists()
    assert dtrak(*words, cwd=tmp_path).error.startswith("give a run")


def test_a_run_of_grey_images_for_a_model_of_colours(unet: Path, tmp_path: Path) -> None:
    for number, pixels in enumerate(load_images("digits:train").pixels(range(5))):
        save_image(tmp_path / "grey" / f"{number}.png", pixels[..., 0])
    outcome = dtrak(
        "attribute", "--model", "unet", "--train", "grey", "--queries", "grey", *SCORING, "--run", "mine", cwd=tmp_path
    )
    assert outcome.code == 0, outcome.err
    assert load_scores(tmp_path / "mine" / "scores.npz")["step-trak"].values.shape == (5, 5)
    assert Run.open(tmp_path / "mine").train_images.shape == (3, 8, 8)


def test_a_recipe_from_a_model(unet: Path, tmp_path: Path) -> None:
    """It is valid, and makes such a model; a pipeline's recipe makes a LoRA for it."""
    outcome = dtrak("recipes", "--from", unet, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    recipe = Recipe.model_validate(yaml.safe_load(outcome.out))
    model = recipe.family.new(recipe.model, (3, 8, 8), "mine")
    assert model.network.config.block_out_channels == [4, 8]  # type: ignore[union-attr]
    assert model.scheduler.config.beta_schedule == "scaled_linear"
    save_tiny("flux", tmp_path / "flux")
    outcome = dtrak("recipes", "--from", "flux", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    recipe = Recipe.model_validate(yaml.safe_load(outcome.out))
    assert recipe.model.base == str(tmp_path / "flux")  # type: ignore[attr-defined]
