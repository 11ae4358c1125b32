"""The Python code in the documentation of models runs as it stands."""

import os
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
BLOCKS = [
    pytest.param(block, id=f"{page}-{number}")
    for page in ("models.md", "own-training.md")
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.S))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_the_code_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found: dict[str, object] = {"__name__": "documented"}
    exec(block, found)
    scores = found["scores"]
    assert scores.values.any()  # type: ignore[attr-defined]
    if "OwnBenchmark" in block:
        assert {"masks.npy", "losses.npy", "benchmark.json", "train.npz"} <= {*os.listdir("bench")}
