"""What docs/architecture.md tells to write is written, as a package of its own, and every command knows it."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from commands import Outcome, dtrak, dtrak_fresh
from conftest import TINY
from dtrak.attribution.scores import Scores
from dtrak.features.store import FeatureStore

PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"
Command = Callable[..., Outcome]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's files and entry points, as pip leaves an installed package."""
    folder = tmp_path_factory.mktemp("outside")
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for code in (code for language, code in blocks if language == "python"):
        name = re.match(r"# (outside_\w+\.py)\n", code)
        assert name is not None, code
        (folder / name[1]).write_text(code)
    groups = tomllib.loads(next(code for language, code in blocks if language == "toml"))["project"]["entry-points"]
    points = [f"[{group}]\n" + "".join(f"{name} = {of}\n" for name, of in own.items()) for group, own in groups.items()]
    about = folder / "outside-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("\n".join(points))
    return folder


@pytest.fixture(scope="module")
def command(package: Path) -> Command:
    return lambda *arguments: dtrak(*arguments, cwd=package, packages=package)


@pytest.fixture(scope="module")
def run(package: Path, command: Command) -> Path:
    """A run of the outside family, attributed by the outside method and kernel."""
    recipe = TINY | {
        "name": "outside",
        "data": TINY["data"] | {"select": {"count": 100}},
        "model": {"kind": "linear", "width": 3},
        "attribution": {"method": "twice", "timesteps": 2, "projection_dim": 64, "damping": 0.1},
    }
    (package / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    outcome = command("run", "recipe.yaml", "--out", "run")
    assert outcome.code == 0, outcome.err
    return package / "run"


def stored(run: Path, name: str) -> np.ndarray:
    features: np.ndarray = FeatureStore.open(next(run.glob(f"features/{name}-*"))).numpy().astype(np.float64)
    return features


def test_a_method_a_kernel_and_a_family_go_from_a_recipe_to_a_report(run: Path) -> None:
    assert "One convolution of 3 × 3 for 8 × 8 grey images" in (run / "report.html").read_text()
    train, queries = stored(run, "train-simple"), stored(run, "queries-simple")
    weights = (train**2).sum(0)
    damping = 0.1 * weights.sum() / len(train)
    expected = 2 * queries / (weights + damping) @ train.T
    np.testing.assert_allclose(Scores.load(run / "scores.npz").values, expected, rtol=1e-3, atol=1e-6)


def test_an_objective_and_an_engine_are_known_by_name(run: Path, package: Path, command: Command) -> None:
    asked = ("--method", "d-trak", "--objective", "cubic", "--timesteps", "3", "--damping", "0.1")
    here = command("attribute", "run", *asked, "--engine", "backwards", "--out", "here.npz")
    assert here.code == 0, here.err
    (run / "scores.npz").unlink(missing_ok=True)  # a question is not answered twice
    there = command("attribute", "run", *asked, "--engine", "pool", "--workers", "1", "--cache", "pool")
    assert there.code == 0, there.err  # workers find the objective as well
    assert Scores.load(package / "here.npz").values.tobytes() == Scores.load(run / "scores.npz").values.tobytes()
    assert [*package.glob("pool/train-cubic-*/part.json")]


def test_they_are_listed_beside_the_others(package: Path, command: Command) -> None:
    listed = dtrak_fresh("methods", cwd=package, PYTHONPATH=str(package))
    assert re.search(r"^ *twice +trak, twice", listed.out, re.MULTILINE)
    assert "choose from process, pool, ray, backwards" in command("serve", "run", "--engine", "sideways").error


def test_one_that_cannot_be_loaded_is_named_and_left_out(tmp_path: Path) -> None:
    about = tmp_path / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[dtrak.methods]\nbroken = nowhere:METHOD\n")
    listed = dtrak("methods", cwd=tmp_path, packages=tmp_path)
    assert (listed.code, "step-trak" in listed.out, "broken" in listed.out) == (0, True, False)
    reason = "ModuleNotFoundError: No module named 'nowhere'"
    assert listed.err == f"Left out: the method broken, as nowhere:METHOD cannot be loaded ({reason})\n"
