"""From a folder of paintings to the credit of their artists, through the command line, with a tiny Stable Diffusion."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from diffusers import AutoencoderKL
from numpy.typing import NDArray
from torch import Tensor

from commands import dtrak
from dtrak.attribution.scores import load_scores
from dtrak.images.images import load_images
from serving import served
from tiny_stable_diffusion import save_pipeline, save_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `dtrak run` makes of the paintings; not to be changed."""
    folder = tmp_path_factory.mktemp("paintings")
    recipe = save_recipe(folder, save_pipeline(folder / "pipeline"))
    outcome = dtrak("run", recipe, "--out", "run", cwd=folder)
    assert outcome.code == 0, outcome.err
    return folder / "run"


@pytest.fixture
def own_run(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


def test_from_paintings_to_credit(run: Path) -> None:
    pictures = load_images(str(run / "generated"))
    assert pictures.columns["prompt"].tolist() == ["a diamond by carl", "a disc by anna", "a stripe by bert"]
    scores = load_scores(run / "scores.npz")["step-trak"]
    assert scores.values.shape == (3, 18)
    assert np.isfinite(scores.values).all()
    assert {one.group for one in scores.credit("artist")} == {"anna", "bert", "carl"}
    page = (run / "report.html").read_text()
    assert "Stable Diffusion" in page
    assert "LoRA of rank 4" in page
    assert "anna" in page
    assert sorted(path.name for path in (run / "model").iterdir()) == ["dtrak.json", "pytorch_lora_weights.safetensors"]
    assert len(list((run / "checkpoints").iterdir())) == 2


LDS = """
--subsets 4 --seeds 1 --output-timesteps 3 --output-noises 1 --validation-count 3 --keep-models --engine process
--method raw-pixel-dot,tracin,d-trak,journey-trak,d-trak-ensemble --queries generated --timesteps 2 --ensemble-size 2
"""
COUNTERFACTUAL = "--count 1 --remove 6 --method random,d-trak --encoder efficientnet-lite0 --engine process"


def test_lds_of_every_kind_of_method(own_run: Path) -> None:
    outcome = dtrak("evaluate", "lds", own_run, *LDS.split(), cwd=own_run.parent)
    assert outcome.code == 0, outcome.err
    methods = json.loads((own_run / "lds.json").read_text())["methods"]
    assert [*methods] == ["raw-pixel-dot", "tracin", "d-trak", "journey-trak", "d-trak-ensemble"]
    with np.load(own_run / "benchmark" / "train.npz") as archive:
        assert archive["prompt"].tolist()[:2] == ["a disc by anna", "a stripe by bert"]
        assert archive["artist"].tolist()[:2] == ["anna", "bert"]
    kept = sorted((own_run / "benchmark" / "retrained").iterdir())
    assert len(kept) == 4
    assert (kept[0] / "pytorch_lora_weights.safetensors").exists()


def test_counterfactual_distances_are_of_unscaled_latents(run: Path, own_run: Path) -> None:
    """Of `latent_dist.mode()` of the two pictures, as the authors have it; and 401 is the step nearest to 400."""
    outcome = dtrak("evaluate", "counterfactual", own_run, *COUNTERFACTUAL.split(), cwd=own_run.parent)
    assert outcome.code == 0, outcome.err
    assert "ℓ2: of unscaled latents" in " ".join(outcome.out.split())
    found = json.loads((own_run / "counterfactual" / "counterfactual.json").read_text())
    vae = AutoencoderKL.from_pretrained(run.parent / "pipeline" / "vae")
    assert vae.config.scaling_factor == 0.5
    with np.load(own_run / "counterfactual" / "pictures.npz") as kept:
        for row, method in enumerate(kept["methods"].tolist()):
            original, other = (_mode(vae, pixels) for pixels in (kept["originals"], kept["counterfactuals"][row]))
            expected = float((original - other).norm())
            assert found["methods"][method]["l2"]["per_query"][0] == pytest.approx(expected, rel=0.05)  # of rounding
    outcome = dtrak("evaluate", "counterfactual", own_run, *COUNTERFACTUAL.split(), "--step", "400", cwd=own_run.parent)
    assert outcome.code == 0, outcome.err
    assert "step 400: 5 steps of DDIM pass through 801, 601, … 1; 401 is taken" in " ".join(outcome.err.split())
    assert (own_run / "counterfactual" / "step-401" / "counterfactual.json").exists()


def _mode(vae: AutoencoderKL, pixels: NDArray[np.uint8]) -> Tensor:
    with torch.no_grad():
        mode: Tensor = vae.encode(torch.from_numpy(pixels / 127.5 - 1).float().permute(0, 3, 1, 2)).latent_dist.mode()
    return mode


def test_a_lora_that_was_trained_elsewhere(run: Path, tmp_path: Path) -> None:
    """With its pipeline beside it, it gives the scores of the run."""
    pipeline, weights = run.parent / "pipeline", run / "model" / "pytorch_lora_weights.safetensors"
    common = ["--train", run.parent / "train", "--queries", run / "generated", "--timesteps", 4]
    common += ["--projection-dim", 128, "--prompt", "{caption}"]
    outcome = dtrak("attribute", "--model", pipeline, "--lora", weights, *common, "--out", "scores.npz", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    found, expected = (load_scores(path)["step-trak"] for path in (tmp_path / "scores.npz", run / "scores.npz"))
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-3, atol=1e-6)


def test_pictures_of_one_prompt(own_run: Path) -> None:
    outcome = dtrak("generate", own_run, "--count", 2, "--prompt", "a disc by bert", cwd=own_run.parent)
    assert outcome.code == 0, outcome.err
    lines = [json.loads(line) for line in (own_run / "generated" / "metadata.jsonl").read_text().splitlines()]
    assert [line["prompt"] for line in lines] == ["a disc by bert"] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("attribute run --lora x", "give a run (run), or --model and --train (and --lora, --prompt, --size), not both"),
        ("attribute --model pipeline --lora x --train train --queries train --out s.npz", "no LoRA at 'x'"),
    ],
)
def test_mistakes_are_named(run: Path, arguments: str, message: str) -> None:
    outcome = dtrak(*arguments.split(), cwd=run.parent)
    assert outcome.code == 2
    assert message in outcome.error


def test_the_explorer_draws_from_a_prompt(own_run: Path) -> None:
    with served(own_run) as server:
        assert server.get("run")["prompts"] is True

        def asked(prompt: str) -> str:
            return server.answered(
                server.client.post("/api/ask", files={"seed": (None, "3"), "prompt": (None, prompt)})
            )

        one, other = asked("a disc by anna"), asked("a stripe by bert")
        assert one != other
        about = json.loads((own_run / "asked" / one).with_suffix(".json").read_text())
        assert about == {"seed": 3, "prompt": "a disc by anna"}
        found = server.get("answer", set="asked", query=one)
        assert "a disc by anna" in json.dumps(found["query"])
        assert found["prompt"] == "a disc by anna"
        long = server.client.post("/api/ask", files={"seed": (None, "3"), "prompt": (None, "x" * 1001)})
        assert long.status_code == 422
        assert "1,000 characters" in long.json()["error"]


CREDIT = "--seeds 2 --method raw-pixel-dot,d-trak --timesteps 2 --engine process"


@pytest.mark.slow
def test_credit_against_models_without_an_artist_trains_each_of_them_once(own_run: Path) -> None:
    recipe = own_run / "recipe.yaml"
    recipe.write_text(recipe.read_text() + "\nevaluation: {timesteps: 3, noises: 1, validation: 3}\n")
    first = dtrak("evaluate", "credit", own_run, *CREDIT.split(), cwd=own_run.parent)
    assert first.code == 0, first.err
    assert "8 of 8 models to train" in first.err  # three artists and all images, with two seeds
    kept = {path.name: path.stat().st_mtime_ns for path in (own_run / "trainings").glob("*.npz")}
    found = json.loads((own_run / "credit.json").read_text())
    assert [*found["methods"]] == ["raw-pixel-dot", "d-trak"]
    assert (found["groups"], found["queries"], found["seeds"]) == (3, 3, 2)
    again = dtrak("evaluate", "credit", own_run, *CREDIT.split(), "--queries", "validation", cwd=own_run.parent)
    assert again.code == 0, again.err
    assert "to train" not in again.err
    assert {path.name: path.stat().st_mtime_ns for path in (own_run / "trainings").glob("*.npz")} == kept


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--by", "painter"], ["no column 'painter'", "artist"]),
        (["--queries", "all"], ["'all'", "generated"]),
    ],
)
def test_credit_cannot_be_evaluated_by_what_is_no_group(run: Path, arguments: list[str], words: list[str]) -> None:
    outcome = dtrak("evaluate", "credit", run, *arguments, cwd=run.parent)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert all(word in outcome.err for word in words), outcome.err


def test_a_recipe_lists_the_prompts_to_draw(own_run: Path) -> None:
    recipe = own_run / "recipe.yaml"
    content = yaml.safe_load(recipe.read_text())
    content["generation"]["prompts"] = ["a disc by anna and bert", "a disc"]
    recipe.write_text(yaml.safe_dump(content))
    outcome = dtrak("generate", own_run, cwd=own_run.parent)
    assert outcome.code == 0, outcome.err
    prompts = load_images(str(own_run / "generated")).columns["prompt"].tolist()
    assert prompts == ["a disc by anna and bert", "a disc", "a disc by anna and bert"]


def test_the_report_shows_intervals_and_the_prompt_of_a_picture(run: Path) -> None:
    page = (run / "report.html").read_text()
    assert "Credit follows the prompt as well as the picture" in page
    assert '"prompts": ["a diamond by carl", "a disc by anna", "a stripe by bert"]' in page
