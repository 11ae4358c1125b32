"""Numbers without bounds: refused by a line with what was typed and the limit, before memory is taken."""

from pathlib import Path
from typing import Any

import pytest
import torch

from commands import dtrak
from dtrak.attribution.settings import Settings
from dtrak.checks import MOST, SEED
from dtrak.engines import make_engine
from dtrak.errors import UsageError
from dtrak.evaluation.benchmark_making import RetrainingSettings
from dtrak.features.featurizing import check_copies
from dtrak.gradients.copies import select_timesteps

HUGE, ENDLESS = "1000000000000", "9" * 5000

TYPED = {
    "generate RUN --count 1000000000": "'--count': '1000000000' is more than 1,000,000",
    f"generate RUN --count {ENDLESS}": "'--count': '999999999999...9999999999999' is more than 1,000,000",
    "generate RUN --seed 99999999999999999999999": "'99999999999999999999999' is more than 9,223,372,036,853,775,807",
    "attribute RUN --draws 10000000": "'--draws': '10000000' is more than 1,000,000",
    "attribute RUN --draws 1000000 --timesteps 1000": "1,000 timesteps with 1,000,000 draws each: their noises take",
    "attribute RUN --projection-dim 1000000000": "'--projection-dim': '1000000000' is more than 1,048,576",
    "attribute RUN --seed 99999999999999999999999": "'99999999999999999999999' is more than 9,223,372,036,854,775,807",
    f"attribute RUN --timesteps {HUGE}": f"timesteps '{HUGE}': give a number from 1 to 1000",
    f"attribute RUN --timesteps {ENDLESS}": "timesteps '999999999999...9999999999999': give a number from 1 to 1000",
    f"attribute RUN --timesteps {'1,' * 20000}": "a list holds different numbers from 0 to 999",
    "attribute RUN --batch-size 10000000": "'--batch-size': '10000000' is more than 1,000,000",
    "attribute RUN --checkpoint-count 1001": "'--checkpoint-count': '1001' is more than 1,000",
    "attribute RUN --ensemble-size 10001": "'--ensemble-size': '10001' is more than 10,000",
    "attribute RUN --parameters (": "the parameter pattern '(' is not a regular expression",
    "attribute RUN --workers 5000": "'--workers': '5000' is more than 1,024",
    "attribute RUN --step 100001": "'--step': '100001' is more than 100,000",
    "attribute --model m --train t --queries q --out o --size 1000000": "'--size': '1000000' is more than 8,192",
    "serve RUN --port 65536": "'--port': '65536' is more than 65,535",
    "evaluate lds RUN --subsets 1000000000": "'--subsets': '1000000000' is more than 10,000",
    "evaluate lds RUN --seeds 101": "'--seeds': '101' is more than 100",
    "evaluate lds RUN --output-noises 10000000": "'--output-noises': '10000000' is more than 1,000,000",
    f"evaluate lds RUN --output-timesteps {HUGE}": f"timesteps '{HUGE}': give a number from 1 to 1000",
    "evaluate lds RUN --validation-count 10000000": "'--validation-count': '10000000' is more than 1,000,000",
    "evaluate counterfactual RUN --count 10000000": "'--count': '10000000' is more than 1,000,000",
    f"evaluate counterfactual RUN --step {ENDLESS}": "step '999999999999...9999999999999': give a timestep such as 400",
    "attribute RUN --engine ray --address localhost:99999": "address 'localhost:99999': give the host:port of a Ray",
}


@pytest.mark.parametrize("line", TYPED, ids=lambda line: line[:60])
def test_what_is_typed_has_a_limit(line: str, finished_run: Path, tmp_path: Path) -> None:
    before = sorted(finished_run.rglob("*"))
    outcome = dtrak(*line.replace("RUN", str(finished_run)).split(), cwd=tmp_path)
    assert (outcome.code, outcome.out) == (2, "")
    assert TYPED[line] in outcome.error
    assert len(outcome.error) < 1000
    assert list(tmp_path.iterdir()) == []
    assert sorted(finished_run.rglob("*")) == before


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"draws": 10**9}, "draws 1000000000: it must be at most 1,000,000"),
        ({"draws": 0}, "draws 0: it must be at least 1"),
        ({"draws": "5"}, "draws '5': it must be a whole number"),
        ({"draws": 1.5}, "draws 1.5: it must be a whole number"),
        ({"draws": None}, "draws None: it must be a whole number"),
        ({"projection_dim": 2**40}, "projection-dim 1099511627776: it must be at most 1,048,576"),
        ({"batch_size": 10**400}, "batch-size 1000000000000000000000000000000000000000…: it must be at most"),
        ({"seed": -1}, "seed -1: it must not be negative"),
        ({"seed": 2**63}, "seed 9223372036854775808: it must be at most 9,223,372,036,854,775,807"),
        ({"projection_seed": 16**5000}, "seed a number of thousands of digits: it must be at most"),
        ({"parameters": "("}, "the parameter pattern '(' is not a regular expression"),
        (
            {"parameters": "(" * 9999},
            "the parameter pattern '((((((((((((...(((((((((((((' is not a regular expression",
        ),
    ],
)
def test_settings_in_python_have_the_same_limits(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        Settings(**settings)
    assert says in str(caught.value)


@pytest.mark.parametrize("name", ["subsets", "seeds", "noises", "validation", "generated", "seed"])
def test_retraining_in_python_has_the_same_limits(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} {10**30}: it must be at most {MOST[name]:,}"):
        RetrainingSettings(**{name: 10**30})  # type: ignore[arg-type]


def test_engines_have_a_limit() -> None:
    with pytest.raises(UsageError, match="workers 1000000000: it must be at most 1,024"):
        make_engine("pool", workers=10**9)


def test_an_address_that_no_machine_can_have_is_one_line(own_run: Path) -> None:
    address = f"{'x' * 300}:1"
    outcome = dtrak("attribute", own_run, "--seed", 5, "--engine", "ray", "--address", address, cwd=own_run)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"no Ray cluster at {address}" in outcome.err.splitlines()[-1]


@pytest.mark.parametrize(
    "choice",
    [10**12, 16**5000, "9" * 5000, "cumulative:" + "9" * 5000, -1, "0," * 10**6],
    ids=["large", "larger", "endless", "endless from 0", "negative", "a long list"],
)
def test_timesteps_without_end_are_refused(choice: int | str) -> None:
    with pytest.raises(UsageError) as caught:
        select_timesteps(choice, 1000)
    assert len(str(caught.value)) < 200


def test_noises_are_counted_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtrak.features.featurizing.total_memory", lambda device: 2_000_000)
    check_copies(10, 10, (1, 50, 49), torch.device("cpu"))
    with pytest.raises(UsageError, match="100 timesteps with 10 draws each: their noises take "):
        check_copies(100, 10, (1, 50, 49), torch.device("cpu"))


def test_the_largest_seed_draws_and_trains(recipe: Any, tmp_path: Path) -> None:
    """Nothing below the limit breaks."""
    recipe(training={"seed": SEED, "epochs": 1}, attribution={"seed": SEED}, generation={"seed": MOST["first_seed"]})
    outcome = dtrak("run", "recipe.yaml", "--out", "run", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    outcome = dtrak("attribute", "run", "--method", "journey-trak", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
