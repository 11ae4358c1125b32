"""What the tests share: a home, a tiny recipe, and a run that the command line made from it once."""

import os

# Threads that compute 8×8 images spend their time waiting for each other, all the more on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"  # tests have a hub of their own

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from filelock import FileLock

from commands import dtrak
from dtrak.images.images import Images, load_images
from ray_cluster_of_tests import extra_node, ray_connection, ray_home, ray_nodes  # noqa: F401


def pytest_configure(config: pytest.Config) -> None:
    # Nothing comes from the caches and settings in the user's home, and nothing goes there.
    if "PYTEST_XDIST_WORKER" not in os.environ:
        home = TemporaryDirectory(prefix="home-", ignore_cleanup_errors=True)
        os.environ["HOME"] = home.name
        config.add_cleanup(home.cleanup)
    # A shell that starts the tests in the background makes them ignore Ctrl-C, and so the commands that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


TINY: dict[str, Any] = {
    "name": "tiny",
    "summary": "a U-Net of 7,361 parameters on the embedded digits",
    "data": {"train": "digits:train", "validation": "digits:validation"},
    "model": {
        "unet": {
            "block_out_channels": [8],
            "layers_per_block": 1,
            "down_block_types": ["DownBlock2D"],
            "mid_block_type": None,
            "up_block_types": ["UpBlock2D"],
            "norm_num_groups": 4,
            "dropout": 0.1,
        },
    },
    "training": {"epochs": 2, "batch_size": 250, "learning_rate": 1e-2},
    "generation": {"count": 4, "steps": 5},
    "attribution": {"timesteps": 1, "projection_dim": 64, "parameters": "conv_out"},  # next to no backward pass
    "evaluation": {},
}


def tiny_recipe(path: Path, **changes: Any) -> Path:
    """Write the tiny recipe with some of its fields changed: tiny_recipe(path, training={"epochs": 3})."""
    content = {
        key: {**value, **changes.get(key, {})} if isinstance(value, dict) else changes.get(key, value)
        for key, value in TINY.items()
    }
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


MadeOnce = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    """Gives a folder of this name that is filled once for all processes of pytest-xdist. Not to be changed."""
    root = tmp_path_factory.getbasetemp()
    shared = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root

    def make(name: str, fill: Callable[[Path], object]) -> Path:
        folder, finished = shared / name, shared / f"{name}.finished"
        with FileLock(shared / f"{name}.lock"):
            if not finished.exists():
                shutil.rmtree(folder, ignore_errors=True)  # whoever began has failed
                folder.mkdir()
                fill(folder)
                finished.touch()
        return folder

    return make


@pytest.fixture(scope="session")
def finished_run(made_once: MadeOnce) -> Path:
    """A run that `dtrak run` made: model, checkpoints, four pictures, scores and report. Not to be changed."""

    def fill(folder: Path) -> None:
        outcome = dtrak("run", tiny_recipe(folder / "tiny.yaml"), "--out", "run", cwd=folder)
        assert outcome.code == 0, outcome.err

    return made_once("finished", fill) / "run"


@pytest.fixture
def own_run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run that a test may change."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[..., Path]:
    """Writes the tiny recipe, with changes, into the test's own folder."""
    return lambda **changes: tiny_recipe(tmp_path / "recipe.yaml", **changes)


# a tiny Stable Diffusion; imported where it is wanted, as diffusers and transformers take seconds


@pytest.fixture(scope="session")
def base(made_once: MadeOnce) -> Path:
    """The folder of its pipeline."""
    from tiny_stable_diffusion import save_pipeline

    return made_once("base", lambda folder: save_pipeline(folder / "pipeline")) / "pipeline"


@pytest.fixture(scope="session")
def painting_recipe(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe for a LoRA on it, beside the paintings that it names."""
    from tiny_stable_diffusion import save_recipe

    return save_recipe(tmp_path_factory.mktemp("paintings"), base)


@pytest.fixture(scope="session")
def paintings(painting_recipe: Path) -> Images:
    return load_images(str(painting_recipe.parent / "train"))
