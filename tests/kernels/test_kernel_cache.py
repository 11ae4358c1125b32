"""A fit is kept beside its features, opened again, and made again only if something that it depends on has changed."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dtrak.attribution.formula_inputs import Fitted
from dtrak.errors import DtrakError
from dtrak.features.store import FeatureStore
from dtrak.kernels.damping import Damping
from dtrak.kernels.kernel_cache import KeptFit, kept_ridge
from dtrak.kernels.ridge import Eigen, Gram, Ridge
from dtrak.kernels.rows import CopyRows

QUERIES = np.random.default_rng(1).normal(size=(3, 1, 6)).astype(np.float32)


def store_of(folder: Path, rows: int = 40, seed: int = 0, copies: int | None = None) -> FeatureStore:
    shape = (6,) if copies is None else (copies, 6)
    store = FeatureStore.create(folder, {"objective": folder.name}, rows, shape)
    random = torch.Generator().manual_seed(seed)
    for index, part in enumerate(store.shards):
        store.write(index, torch.randn(len(part), *shape, generator=random))
    return FeatureStore.open(store.folder)


def fit_of(store: FeatureStore, one_damping: bool = False) -> tuple[Ridge, KeptFit[Eigen]]:
    make, kept = kept_ridge(store.folder.parent / "kernels", (store.digest,), CopyRows([store]), one_damping)
    return make(), kept


def no_fit(*_: object, **__: object) -> None:
    pytest.fail("it was fitted again")


@pytest.mark.parametrize("one_damping", [False, True])
@pytest.mark.parametrize("copies", [None, 2])
@pytest.mark.parametrize("rows", [40, 2])  # G and ΦΦᵀ
def test_a_fit_is_opened_instead_of_made_again(
    tmp_path: Path, rows: int, copies: int | None, one_damping: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, queries = store_of(tmp_path / "train-simple", rows, copies=copies), QUERIES.repeat(copies or 1, 1)
    first, _ = fit_of(store, one_damping)
    expected = first.scores(first.coordinates(queries), 0.1)
    for kind in (Gram, Eigen):
        monkeypatch.setattr(kind, "of", no_fit)
    again, _ = fit_of(FeatureStore.open(store.folder), one_damping)
    np.testing.assert_array_equal(again.scores(again.coordinates(queries), 0.1), expected)
    assert again.images == rows
    if not one_damping:
        assert isinstance(again.eigenvalues, np.memmap)


def test_other_features_and_damaged_files_make_it_again(tmp_path: Path) -> None:
    store = store_of(tmp_path / "train-simple")
    values = np.array(fit_of(store)[0].eigenvalues)
    path = tmp_path / "kernels/eigen/values.npy"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    np.testing.assert_array_equal(fit_of(store)[0].eigenvalues, values)
    assert path.read_bytes() != bytes(content)
    for damage in ("", "{", "[]", '{"fingerprint": 3}'):
        (path.parent / "fit.json").write_text(damage)
        np.testing.assert_array_equal(fit_of(store)[0].eigenvalues, values)
    other = store_of(tmp_path / "train-simple", seed=1)
    assert not np.allclose(fit_of(other)[0].eigenvalues, values)


def test_what_a_rule_found_is_kept_with_what_it_was_compared_with(tmp_path: Path) -> None:
    kernel, fit = fit_of(store_of(tmp_path / "train-simple"))
    asked: list[int] = []

    def find(damping: Damping) -> float:
        asked.append(1)
        return 2.0 * kernel.trace

    found = [Fitted(kernel, find, fit, follows).absolute(Damping.parse("auto")) for follows in ("one", "one", "")]
    assert found == 3 * [2.0 * kernel.trace]
    assert len(asked) == 2  # once for each thing that it is compared with
    kept = json.loads((tmp_path / "kernels/eigen/fit.json").read_text())["dampings"]
    assert kept == {"auto one": found[0], "auto": found[0]}


def test_a_full_disk_costs_only_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise DtrakError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr("dtrak.kernels.kernel_cache.write_bytes", full)
    assert fit_of(store_of(tmp_path / "train-simple"))[0].rank == 6
    assert "No space left on device; the fitted kernel is not kept" in " ".join(capsys.readouterr().err.split())
    assert not [*tmp_path.glob("kernels/*")]
