"""A fit is kept beside its features, opened again, and made again only if something that it depends on has changed."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dtrak.errors import DtrakError
from dtrak.features.store import FeatureStore
from dtrak.inputs import keeping
from dtrak.inputs.arrays import TrainingKernel
from dtrak.inputs.keeping import kept_fit, kept_pooled
from dtrak.kernels.copies import CopyFeatures
from dtrak.kernels.damping import Damping
from dtrak.kernels.kept import KeptFit

QUERIES = np.random.default_rng(1).normal(size=(3, 6)).astype(np.float32)


def store_of(folder: Path, rows: int = 40, seed: int = 0, copies: int | None = None) -> FeatureStore:
    shape = (6,) if copies is None else (copies, 6)
    store = FeatureStore.create(folder, {"objective": folder.name}, rows, shape)
    random = torch.Generator().manual_seed(seed)
    for index, part in enumerate(store.shards):
        store.write(index, torch.randn(len(part), *shape, generator=random))
    return FeatureStore.open(store.folder)


def no_fit(*_: object) -> None:
    pytest.fail("it was fitted again")


@pytest.mark.parametrize("rows", [40, 4])  # the primal and the dual form
def test_a_fit_is_opened_instead_of_made_again(tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(tmp_path / "train-simple", rows)
    first = kept_fit("ridge", store)()
    expected = first.scores(first.coordinates(QUERIES), 0.1)
    monkeypatch.setattr(keeping, "decompose", no_fit)
    again = kept_fit("ridge", FeatureStore.open(store.folder))()
    np.testing.assert_array_equal(again.scores(again.coordinates(QUERIES), 0.1), expected)
    assert isinstance(again.eigenvalues, np.memmap)
    assert again.images == rows


def test_a_fit_of_copies_serves_their_means_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(tmp_path / "train-simple-copies", copies=2)
    features = CopyFeatures([store])
    kept_pooled([store], features, features)()
    monkeypatch.setattr(keeping, "fit_pooled", no_fit)
    means = kept_pooled([store], features, features.mean())()
    assert means.scores(means.coordinates(QUERIES[:, None]), 0.1).shape == (3, 40)
    own = CopyFeatures([store], unit=False)
    with pytest.raises(pytest.fail.Exception):
        kept_pooled([store], own, own)()


def test_other_features_and_damaged_files_make_it_again(tmp_path: Path) -> None:
    store = store_of(tmp_path / "train-simple")
    before = kept_fit("ridge", store)()
    values = np.array(before.eigenvalues)
    (path,) = tmp_path.glob("kernels/ridge-train-simple-*/eigenvalues.npy")
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    np.testing.assert_array_equal(kept_fit("ridge", store)().eigenvalues, values)
    assert path.read_bytes() != bytes(content)
    for damage in ("", "{", "[]", '{"fingerprint": 3}'):
        (path.parent / "fit.json").write_text(damage)
        np.testing.assert_array_equal(kept_fit("ridge", store)().eigenvalues, values)
    other = store_of(tmp_path / "train-simple", seed=1)
    assert not np.allclose(kept_fit("ridge", other)().eigenvalues, values)


def test_what_a_rule_found_is_kept_with_what_it_was_compared_with(tmp_path: Path) -> None:
    one, two = (store_of(tmp_path / name) for name in ("train-simple", "train-square"))
    fit, other = kept_fit("ridge", one), kept_fit("ridge", two)
    assert isinstance(fit, KeptFit)
    assert isinstance(other, KeptFit)
    asked: list[int] = []

    def automatic(kernel: object) -> float:
        asked.append(1)
        return 2.0

    found = [
        TrainingKernel(fit, automatic, kept=fit, compared=compared).absolute(Damping.parse("auto"))
        for compared in (other, other, None)
    ]
    assert len(set(found)) == 1
    assert len(asked) == 2  # once for each thing that it is compared with
    kept = json.loads(next(tmp_path.glob("kernels/ridge-train-simple-*/fit.json")).read_text())["dampings"]
    assert kept == {f"auto {other.fingerprint}": found[0], "auto": found[0]}


def test_a_full_disk_costs_only_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise DtrakError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr("dtrak.kernels.kept.write_bytes", full)
    assert len(kept_fit("ridge", store_of(tmp_path / "train-simple"))()) == 40
    assert "No space left on device; the fitted kernel is not kept" in " ".join(capsys.readouterr().err.split())
    assert not [*tmp_path.glob("kernels/*")]
