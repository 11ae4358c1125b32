"""What methods share and what they lack: each image is seen once for all of them, and nothing is left unsaid."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dtrak
import tiny
from dtrak.attribution.opened import evenly_spaced
from dtrak.errors import UsageError
from dtrak.methods import METHODS
from dtrak.models import save_model
from dtrak.models.sampling import sample, to_pixels
from tiny_benchmark import GENERATED, TRAIN, VALIDATION, random_halves, write_benchmark, write_images

QUERIES = VALIDATION.select([3, 0, 2])
FROM_GRADIENTS = ["trak", "relative-if", "renormalized-if", "gradient-dot", "gradient-cosine", "d-trak"]
NEED_NOTHING_MORE = [
    "random",
    "raw-pixel-dot",
    "raw-pixel-cosine",
    "nda",
    *FROM_GRADIENTS,
    "mixed-trak",
    "step-trak",
    "ek-fac",
    "das",
]
QUICK: dict[str, Any] = {"timesteps": 1, "projection_dim": 64}


def stores(folder: Path) -> list[str]:
    """The stores below a cache folder, without what tells one set of queries, or one model, from another."""
    found = []
    for path in folder.rglob("part.json"):
        name = re.sub(r"-[0-9a-f]{8}(?=[-/])|-[0-9a-f]{16}$", "", str(path.parent.relative_to(folder)))
        is_apart = json.loads(path.read_text())["part"].get("spec", {}).get("copies") == "apart"
        found.append(f"{name}-copies" if is_apart else name)
    return sorted(found)


# sharing


def test_every_image_passes_forward_once_for_all_methods(tmp_path: Path) -> None:
    model, passes = tiny.unet(), Counter[int]()
    model.network.register_forward_hook(lambda module, inputs, output: passes.update([len(inputs[0])]))
    found = dtrak.attribute(
        model, TRAIN, QUERIES, method=FROM_GRADIENTS, timesteps=3, projection_dim=64, cache=tmp_path, batch_size=1
    )
    assert list(found) == FROM_GRADIENTS
    # Three copies of each image, and one of none to see what a copy takes, for training images and for queries.
    assert passes == {3: len(TRAIN) + len(QUERIES), 1: 2}
    assert stores(tmp_path) == ["queries-simple", "queries-square", "train-simple", "train-square"]


def test_the_order_of_the_question_does_not_matter() -> None:
    forwards = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method=FROM_GRADIENTS, **QUICK)
    backwards = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method=FROM_GRADIENTS[::-1], **QUICK)
    assert list(backwards) == list(forwards)[::-1]
    for name, scores in forwards.items():
        assert scores.method == name
        np.testing.assert_array_equal(scores.values, backwards[name].values)


def test_an_objective_of_ones_own_replaces_d_traks_alone(tmp_path: Path) -> None:
    plain, asked = (
        dtrak.attribute(
            tiny.unet(), TRAIN, QUERIES, method=["trak", "d-trak"], objective=objective, cache=tmp_path, **QUICK
        )
        for objective in (None, "avg")
    )
    np.testing.assert_array_equal(plain["trak"].values, asked["trak"].values)
    assert not np.allclose(plain["d-trak"].values, asked["d-trak"].values)
    assert [name for name in stores(tmp_path) if name.startswith("train")] == [
        "train-avg",
        "train-simple",
        "train-square",
    ]


def test_d_trak_of_the_training_loss_is_trak() -> None:
    found = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method=["trak", "d-trak"], objective="simple", **QUICK)
    np.testing.assert_array_equal(found["trak"].values, found["d-trak"].values)


# everything there is


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All that any method needs, for pictures that the tiny model drew and retrained models know."""
    folder = tmp_path_factory.mktemp("everything")
    benchmark = write_benchmark(folder / "benchmark", {f"subset-00{s}-seed-0": tiny.unet(seed=s + 1) for s in range(2)})
    pixels = to_pixels(sample(tiny.unet(), range(3), steps=4).pictures).numpy()
    np.savez(benchmark / "generated.npz", images=pixels, seed=np.arange(3))
    for step in (1, 2):
        save_model(tiny.unet(seed=step), folder / "checkpoints" / f"step-{step}")
    return {
        "queries": benchmark / "generated.npz",
        "retrained": benchmark,
        "checkpoints": folder / "checkpoints",
        "encoder": "efficientnet-lite0",
        "ddim_steps": 4,
    }


def test_all_is_every_method_where_nothing_is_lacking(
    everything: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = dtrak.attribute(tiny.unet(), TRAIN, method=["all"], cache=tmp_path, **everything, **QUICK)
    assert list(found) == list(METHODS)
    for name, scores in found.items():
        assert scores.values.shape == (3, 12)
        assert scores.values.dtype == np.float32
        assert np.isfinite(scores.values).all(), name
    assert "Left out" not in capsys.readouterr().err
    of_model = ["trajectories-simple", "queries-simple", "queries-square", "train-simple", "train-square"]
    sets = ("queries", "train")
    of_mixed_trak = [f"{name}-{one}" for name in sets for one in ("avg", "interpolated(0)")]
    of_copies = [f"{name}-{one}-copies" for name in sets for one in ("simple", "avg")]  # step-trak and das
    whole = [f"{name}-simple" for name in sets]  # ek-fac
    of_checkpoints = [f"{name}-simple{kind}" for name in sets for kind in ("", "-copies")] * 2  # tracin and retrac
    made = [one for one in stores(tmp_path) if one.startswith(("queries", "train", "trajectories"))]
    assert made == sorted(of_model + of_mixed_trak + of_copies + whole + of_checkpoints + 2 * of_model)
    alone = dtrak.attribute(tiny.unet(), TRAIN, method="journey-trak", **everything, **QUICK)
    np.testing.assert_allclose(found["journey-trak"].values, alone.values, rtol=1e-4, atol=1e-6)


def test_all_leaves_out_what_lacks_something_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    found = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method=["all"], encoder="nowhere", **QUICK)
    assert sorted(found) == sorted(NEED_NOTHING_MORE)
    left_out = dict(re.findall(r"^Left out: ([\w-]+): (.*)$", capsys.readouterr().err, re.MULTILINE))
    assert left_out.keys() == METHODS.keys() - found.keys()
    for name, lacking in (
        ("clip-dot", "no encoder 'nowhere'"),
        ("clip-cosine", "no encoder 'nowhere'"),
        ("tracin", "give their folder as --checkpoints"),
        ("gas", "give their folder as --checkpoints"),
        ("journey-trak", "digits:validation has no column 'seed'"),
        ("trak-ensemble", "give a benchmark folder as --retrained"),
        ("journey-trak-ensemble", "give a benchmark folder as --retrained"),
        ("empirical-influence", "give a benchmark folder as --retrained"),
        ("datamodel-lasso", "give a benchmark folder as --retrained"),
    ):
        assert lacking in left_out[name]


def test_a_benchmark_without_models_has_losses_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_benchmark(tmp_path / "bench")
    found = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method=["all"], retrained=folder, encoder="nowhere", **QUICK)
    assert {"empirical-influence", "datamodel", "datamodel-lasso"} <= found.keys()
    assert not {"trak-ensemble", "d-trak-ensemble"} & found.keys()
    assert re.search(rf"Left out: trak-ensemble: {folder} .*--keep-models", capsys.readouterr().err)


def test_all_leaves_out_what_too_few_subsets_cannot_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_benchmark(tmp_path / "bench")
    np.save(folder / "masks.npy", random_halves(3, 12))
    np.save(folder / "losses.npy", np.ones((3, 1, len(VALIDATION)), dtype=np.float32))
    np.save(folder / "generated_losses.npy", np.ones((3, 1, len(GENERATED)), dtype=np.float32))
    found = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method=["all"], retrained=folder, encoder="nowhere", **QUICK)
    assert sorted(found) == sorted(NEED_NOTHING_MORE)
    assert "Left out: datamodel: 3 retrained models are too few" in capsys.readouterr().err


def test_all_leaves_out_journeys_of_pictures_that_were_not_drawn_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queries = write_images(tmp_path / "queries.npz", QUERIES, seed=np.arange(3))
    found = dtrak.attribute(tiny.unet(), TRAIN, queries, method=["all"], ddim_steps=4, encoder="nowhere", **QUICK)
    assert sorted(found) == sorted(NEED_NOTHING_MORE)
    assert "Left out: journey-trak: 0 of" in capsys.readouterr().err


def test_all_can_be_asked_for_by_its_name() -> None:
    found: Any = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method="all", encoder="nowhere", **QUICK)
    assert sorted(found) == sorted(NEED_NOTHING_MORE)


# what is lacking


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("tracin", {}, "no checkpoints of the training: give their folder as --checkpoints"),
        ("gas", {"checkpoints": Path("nowhere")}, "no checkpoints in nowhere"),
        ("trak-ensemble", {}, "no retrained models: give a benchmark folder as --retrained"),
        ("datamodel", {"retrained": Path("nowhere")}, "nowhere is not a benchmark"),
        ("clip-dot", {"encoder": "nowhere"}, "no encoder 'nowhere'"),
        ("journey-trak", {}, "no column 'seed'"),
    ],
)
def test_what_a_method_lacks_is_said_before_the_work_begins(
    method: str, settings: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method=["d-trak", method], **settings, **QUICK)
    assert "features of" not in capsys.readouterr().err


def test_a_benchmark_of_other_training_images_is_refused(everything: dict[str, Any]) -> None:
    for method in ("empirical-influence", "trak-ensemble"):
        with pytest.raises(UsageError, match="digits:train does not hold the training images of"):
            dtrak.attribute(tiny.unet(), TRAIN.select(range(11, -1, -1)), method=method, **everything, **QUICK)


def test_queries_that_the_benchmark_does_not_know_are_refused_for_their_losses_alone(
    everything: dict[str, Any],
) -> None:
    stranger = dtrak.load_images("digits:validation").select([50])
    settings = everything | {"queries": stranger} | QUICK
    with pytest.raises(UsageError, match="the losses of 50 of digits:validation"):
        dtrak.attribute(tiny.unet(), TRAIN, method="datamodel", **settings)
    assert dtrak.attribute(tiny.unet(), TRAIN, method="trak-ensemble", **settings).values.shape == (1, 12)


def test_only_so_many_subsets_and_models_count(everything: dict[str, Any], tmp_path: Path) -> None:
    """A comparison fits on the first subsets and reports on the others; an ensemble has a size."""
    outcomes = dtrak.attribute(tiny.unet(), TRAIN, method="empirical-influence", retrained_count=5, **everything)
    masks = np.load(everything["retrained"] / "masks.npy")[:5]
    losses = np.load(everything["retrained"] / "generated_losses.npy").mean(1)[:5]
    for query, image in np.ndindex(3, 12):
        seen = masks[:, image]
        if seen.any() and not seen.all():
            expected = losses[~seen, query].mean() - losses[seen, query].mean()
            assert outcomes.values[query, image] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    one, first, both = (
        dtrak.attribute(tiny.unet(), TRAIN, method="trak-ensemble", cache=tmp_path, **few, **everything, **QUICK).values
        for few in ({"ensemble_size": 1}, {"retrained_count": 1}, {})
    )
    np.testing.assert_array_equal(one, first)
    assert not np.allclose(one, both)


def test_models_of_later_subsets_do_not_count_among_the_first(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", {"subset-005-seed-0": tiny.unet()})
    with pytest.raises(UsageError, match="--keep-models"):
        dtrak.attribute(
            tiny.unet(), TRAIN, QUERIES, method="trak-ensemble", retrained=folder, retrained_count=3, **QUICK
        )


def test_folders_can_be_given_as_text(everything: dict[str, Any]) -> None:
    for name in ("checkpoints", "retrained"):
        settings = everything | {name: str(everything[name])} | QUICK
        found = dtrak.attribute(tiny.unet(), TRAIN, method=["tracin", "datamodel"], **settings)
        assert len(found) == 2


# which checkpoints


def folders(parent: Path, *names: str) -> Path:
    for name in names:
        (parent / name).mkdir()
    return parent


def test_checkpoints_are_evenly_spaced_and_end_with_the_last(tmp_path: Path) -> None:
    folders(tmp_path, *(f"step-{10 * step:06d}" for step in range(1, 9)))
    (tmp_path / "notes.txt").touch()
    names = [path.name for path in evenly_spaced(tmp_path, 4)]
    assert names == ["step-000020", "step-000040", "step-000060", "step-000080"]
    assert [path.name for path in evenly_spaced(tmp_path, 1)] == ["step-000080"]
    assert len(evenly_spaced(tmp_path, 100)) == 8


def test_checkpoints_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folders(tmp_path, "epoch-9", "epoch-100", "epoch-20", "epoch-1")
    assert [path.name for path in evenly_spaced(tmp_path, 4)] == ["epoch-1", "epoch-9", "epoch-20", "epoch-100"]


@settings(max_examples=60, deadline=None)
@given(there=st.integers(1, 40), count=st.integers(1, 40))
def test_no_checkpoint_counts_twice(tmp_path_factory: pytest.TempPathFactory, there: int, count: int) -> None:
    """As many as asked for or there are; the last among them; no two gaps differ by more than one."""
    parent = folders(tmp_path_factory.mktemp("steps"), *(f"step-{step}" for step in range(1, there + 1)))
    steps = [int(path.name.removeprefix("step-")) for path in evenly_spaced(parent, count)]
    assert len(steps) == min(there, count)
    assert steps[-1] == there
    gaps = np.diff([0, *steps])
    assert gaps.min() >= 1
    assert np.ptp(gaps) <= 1


def test_what_a_kill_left_behind_is_no_checkpoint(tmp_path: Path) -> None:
    folders(tmp_path, "step-000010", "step-000020", ".step-000030.0a1b2c3d.tmp", ".cache")
    assert [path.name for path in evenly_spaced(tmp_path, 4)] == ["step-000010", "step-000020"]
