"""Several processes fill one store by shares, as in a Slurm array: the same bytes as one process alone."""

from pathlib import Path

import numpy as np
import pytest

from commands import dtrak

OPTIONS = ("--method", "d-trak", "--timesteps", "1", "--projection-dim", "64", "--parameters", "conv_out")


def shards(cache: Path) -> dict[str, bytes]:
    return {str(path.relative_to(cache)): path.read_bytes() for path in cache.glob("train-*/shard-*")}


@pytest.fixture
def question(finished_run: Path) -> tuple[object, ...]:
    return ("attribute", "--model", finished_run / "model", "--train", "digits:train", *OPTIONS)


def test_shares_fill_a_store_that_is_then_scored(question: tuple[object, ...], tmp_path: Path) -> None:
    rest = ("--queries", "digits:validation", "--out")
    assert dtrak(*question, "--cache", "whole", *rest, "whole.npz", cwd=tmp_path).code == 0
    for number in (3, 1):
        done = dtrak(*question, "--cache", "shares", "--shard", f"{number}/3", cwd=tmp_path)
        assert done.code == 0, done.err
        assert f"Share {number} of 3 of the features: shares" in done.out
    whole, some = shards(tmp_path / "whole"), shards(tmp_path / "shares")
    assert len(some) == 2 * (11 + 10)  # 32 shards in each of two stores
    assert some.items() < whole.items()
    assert dtrak(*question, "--cache", "shares", "--shard", "2/3", cwd=tmp_path).code == 0
    assert shards(tmp_path / "shares") == whole
    assert dtrak(*question, "--cache", "shares", *rest, "shares.npz", cwd=tmp_path).code == 0
    np.testing.assert_array_equal(*(np.load(tmp_path / f"{name}.npz")["values"] for name in ("whole", "shares")))


OUT_OF_RANGE, NO_SHARE = "its number has to be from 1 to 4", "give its number and how many there are, such as 3/64"


@pytest.mark.parametrize(
    ("shard", "right"),
    [("0/4", OUT_OF_RANGE), ("5/4", OUT_OF_RANGE), *((one, NO_SHARE) for one in ("3", "a/b", "1/0", "-1/4"))],
)
def test_a_share_that_there_is_not_is_refused(
    question: tuple[object, ...], shard: str, right: str, tmp_path: Path
) -> None:
    refused = dtrak(*question, "--cache", "cache", f"--shard={shard}", cwd=tmp_path)
    assert refused.code == 2
    assert f"shard '{shard}': {right}" in refused.error
    assert not (tmp_path / "cache").exists()


def test_a_share_needs_a_folder(question: tuple[object, ...], tmp_path: Path) -> None:
    refused = dtrak(*question, "--shard", "1/2", cwd=tmp_path)
    assert refused.code == 2
    assert "give a run, or all of --model, --train and --cache" in refused.error
