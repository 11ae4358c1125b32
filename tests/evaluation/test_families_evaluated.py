"""LoRAs of every family from a recipe that their pipeline gives, to LDS and counterfactuals, by the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from commands import Outcome, dtrak
from tiny_pipelines import MAKERS, SIDE, save_tiny
from tiny_stable_diffusion import save_paintings

QUICK = ("flux", "dit")  # a prompt and a flow; a class and a diffusion
KINDS = [pytest.param(kind, marks=[] if kind in QUICK else [pytest.mark.slow], id=kind) for kind in MAKERS]
RETRAINING = ["--subsets", "2", "--seeds", "1", "--output-timesteps", "2", "--output-noises", "1"]
SMALL = {
    "training": {"epochs": 4, "batch_size": 3, "learning_rate": 0.05},
    "generation": {"count": 2, "steps": 2},
    "attribution": {"timesteps": 2, "projection_dim": 128, "method": "step-trak"},
}


def done(*words: object, folder: Path) -> Outcome:
    outcome = dtrak(*words, cwd=folder)
    assert outcome.code == 0, outcome.err
    return outcome


def with_classes(folder: Path) -> None:
    """Give each painting of a folder a class."""
    path = folder / "metadata.jsonl"
    lines = [json.loads(line) | {"label": row % 3} for row, line in enumerate(path.read_text().splitlines())]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("kind", KINDS)
def test_a_lora_is_evaluated(kind: str, tmp_path: Path) -> None:
    save_tiny(kind, tmp_path / "model")
    for name in ("train", "validation"):
        with_classes(save_paintings(tmp_path / name, 6 if name == "train" else 2, seed=len(name)))
    recipe = yaml.safe_load(done("recipes", "--from", "model", folder=tmp_path).out) | SMALL
    recipe["data"] = {"train": "train", "validation": "validation", "size": SIDE}
    recipe["model"]["lora"] = {"rank": 2, "alpha": 2}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe))

    done("run", "mine.yaml", "--out", "run", folder=tmp_path)
    done("evaluate", "lds", "run", "--engine", "process", *RETRAINING, folder=tmp_path)
    losses = np.load(tmp_path / "run" / "benchmark" / "losses.npy")
    assert losses.shape == (2, 1, 2)
    assert np.isfinite(losses).all()
    assert len(np.unique(losses)) == 4, "each model was trained on other images"
    found = json.loads((tmp_path / "run" / "lds.json").read_text())
    assert -100 <= found["methods"]["step-trak"]["lds"] <= 100

    words = ["--count", "1", "--method", "trak", "--remove", "3", "--encoder", "efficientnet-lite0"]
    done("evaluate", "counterfactual", "run", "--engine", "process", *words, folder=tmp_path)
    distances = json.loads((tmp_path / "run" / "counterfactual" / "counterfactual.json").read_text())
    assert distances["methods"]["trak"]["l2"]["per_query"][0] > 0
