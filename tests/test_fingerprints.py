"""Facts and their fingerprints: everything that is hashed changes them, and nothing else does."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from dtrak.fingerprints import first_difference, first_random, hash_of, of_array, of_object, of_tensors

FACTS = {"model": {"weights": "a", "reads": ["label"]}, "train": {"columns": {"artist": "b"}, "count": 3}}


def test_a_fingerprint_is_of_values_and_not_of_their_order() -> None:
    turned = {name: dict(reversed(inner.items())) for name, inner in reversed(FACTS.items())}
    assert hash_of(turned) == hash_of(FACTS)
    assert len(hash_of(FACTS)) == 16
    int(hash_of(FACTS), 16)
    assert len({hash_of(one) for one in ([], {}, None, 0, 0.0, False, "", "0", [[]], [1, 2], [2, 1])}) == 11
    assert hash_of((1, 2)) == hash_of([1, 2])
    with pytest.raises(TypeError):
        hash_of({"network": object()})


@pytest.mark.parametrize(
    ("now", "path"),
    [
        (FACTS, None),
        ({**FACTS, "train": {"columns": {"artist": "c"}, "count": 3}}, "train.columns.artist"),
        ({**FACTS, "train": {"columns": {}, "count": 3}}, "train.columns"),
        ({**FACTS, "train": {"columns": {"artist": "b", "label": None}, "count": 3}}, "train.columns.label"),
        ({**FACTS, "model": {"weights": "a", "reads": ["class"]}}, "model.reads.0"),
        ({**FACTS, "model": None}, "model"),
        ({"model": FACTS["model"]}, "train"),
        ({**FACTS, "train": {"columns": {"artist": "b"}, "count": 3.0}}, "train.count"),
    ],
)
def test_the_first_difference_has_a_path(now: object, path: str | None) -> None:
    assert first_difference(FACTS, now) == path
    assert first_difference(now, FACTS) == path
    assert (hash_of(now) == hash_of(FACTS)) == (path is None)


def test_arrays() -> None:
    values = np.arange(6, dtype=np.int32)
    others = [values.reshape(2, 3), values.astype(np.int64), values.view(np.float32), values[::-1], values[:0]]
    others += [np.array(7), np.array(["a", "b"]), np.array(["a", "c"])]
    assert len({of_array(one) for one in [values, *others]}) == 9
    assert of_array(np.arange(12, dtype=np.int32)[::2] // 2) == of_array(values)
    assert of_array(np.array(["a", "b"], dtype="U9")) == of_array(np.array(["a", "b"], dtype=object))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_tensors(dtype: torch.dtype) -> None:
    tensors = {"a": torch.zeros(2, 3).to(dtype), "b": torch.tensor(1).to(dtype), "none": torch.zeros(0).to(dtype)}
    before = of_tensors(tensors)
    assert of_tensors(dict(reversed(tensors.items()))) == before
    assert of_tensors({**tensors, "a": torch.zeros(3, 2).to(dtype).T}) == before
    assert of_tensors({"c" if name == "a" else name: value for name, value in tensors.items()}) != before
    assert of_tensors({**tensors, "a": tensors["a"].view(3, 2)}) != before
    tensors["a"].data[1, 1] = 1  # leaves no trace in torch's `_version`
    assert of_tensors(tensors) != before


class Weighted:
    """An objective with a setting."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, x: float) -> float:
        return self.weight * x


SCALE = 1.0


def closure(weight: float) -> object:
    return lambda x, power=2: SCALE * weight * x**power


def test_functions_and_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    def same_cell() -> object:
        namespace: dict[str, object] = {"__name__": "__main__", "factor": 3}
        exec("def objective(x):\n    return factor * x", namespace)
        return namespace["objective"]

    assert of_object(same_cell()) == of_object(same_cell()), "a cell of a notebook may run twice"
    assert of_object(closure(1)) == of_object(closure(1))
    made = [closure(1), closure(2), Weighted(1), Weighted(2), partial(max, 1), partial(max, 2), max, same_cell()]
    found = {of_object(one) for one in made}
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 2.0)
    found.add(of_object(closure(1)))
    changed = Weighted(1)
    changed.weight = 3
    found.add(of_object(changed))
    assert len(found) == len(made) + 2
    assert all(first_random(one) is None for one in found)


def test_the_source_of_a_plug_in_counts_in_every_process(tmp_path: Path) -> None:
    """Also the files beside the one that the function stands in, and a function that a closure calls."""
    (tmp_path / "plug_in").mkdir()
    code = "from plug_in.inner import factor\ndef loss(x): return factor * x"
    (tmp_path / "plug_in" / "__init__.py").write_text(code)
    (tmp_path / "alone.py").write_text("def loss(x): return x")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import plug_in, alone; from dtrak.fingerprints import of_object\n"
        "print(of_object(plug_in.loss), of_object(alone.loss), of_object(lambda x: plug_in.loss(x)))"
    )

    def hashes(inner: str, alone: str) -> list[str]:
        (tmp_path / "plug_in" / "inner.py").write_text(inner)
        (tmp_path / "alone.py").write_text(alone)
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", code, str(tmp_path)]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.split()

    one = hashes("factor = 1", "def loss(x): return x")
    assert hashes("factor = 1", "def loss(x): return x") == one
    other = hashes("factor = 2", "def loss(x): return x")
    assert [before == after for before, after in zip(one, other, strict=True)] == [False, True, False]
    other = hashes("factor = 1", "def loss(x): return -x")
    assert [before == after for before, after in zip(one, other, strict=True)] == [True, False, True]


def test_what_cannot_be_hashed_is_random_but_stays_the_same() -> None:
    numbers = (number for number in range(9))

    def counting(x: float) -> float:
        return next(numbers) * x

    assert of_object(counting) == of_object(counting)
    facts = {"model": {"network": {"adapter": [1, of_object(counting)]}}}
    assert first_random(facts) == "model.network.adapter.1"
    assert of_object(counting) != of_object(1 for _ in range(9))
