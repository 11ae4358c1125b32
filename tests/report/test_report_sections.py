"""The report's sections beside the pictures, from files that the evaluations themselves write."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtrak.attribution.scores import Scores, load_scores, save_scores
from dtrak.attribution.self_influence import self_influence_by_class
from dtrak.errors import DtrakError, UsageError
from dtrak.evaluation.comparison import Comparison, Result, save_comparison
from dtrak.evaluation.counterfactual import Counterfactual, Effect, write_result
from dtrak.evaluation.lds import LDS
from dtrak.features.store import Cost
from dtrak.figures import html_pictures
from dtrak.figures.html_pictures import ShownPicture, embedded
from dtrak.figures.style import nice_ticks, plain_value, x_tick_values
from dtrak.files import write_text
from dtrak.images.images import load_images
from dtrak.report import write_report
from dtrak.report.curves import TOP, Curve, Sample, damping_curve, plot, setting_curves
from dtrak.report.measured import read_measurements, trust
from dtrak.report.sections import read_counterfactuals
from dtrak.runs.recipes import load_recipe
from dtrak.runs.run import Run
from dtrak.wording import described
from report_runs import asked_of, keep, make_run

QUERIES = "digits:validation"

SETTINGS: dict[str, Any] = {"timesteps": 10, "projection_dim": 4096, "damping": "1.0"}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """With scores of two methods and nothing else."""
    kernels = ("trak", "d-trak")
    return make_run(tmp_path, load_recipe("digits"), "digits:validation", 6, (*kernels, "random"), kernels=kernels)[0]


def measure(
    run: Run,
    methods: dict[str, float],
    ceiling: float | None = None,
    curve: Sequence[Any] = (),
    queries: str = "validation",
    damping: str = "chosen",
    **changes: Any,
) -> None:
    """Keep a comparison as `dtrak evaluate lds` does."""
    results = [
        Result(
            name,
            LDS(np.array([lds - 1, lds + 1]), lds, 1.5, lds - 3, lds + 2),
            0.1,
            5.0,
            2.0,
            Cost(),
            0.0,
            curve,
        )
        for name, lds in methods.items()
    ]
    asked = asked_of(run, "digits:validation", list(methods), **SETTINGS | changes)
    asked["facts"]["settings"]["damping"] = damping
    how = {"queries": queries, "damping": damping}
    found = Comparison(results, ceiling, 2, 32, "chosen on the other 32 subsets", asked, how)
    save_comparison(run, found)
    write_text(run.folder / "lds.json", found.json())


def sections(run: Run) -> set[str]:
    return set(re.findall(r'<h2 id="([\w-]+)"', write_report(run).read_text()))


def test_a_section_appears_only_with_what_it_is_about(run: Run) -> None:
    always = {"reading", "facts", "trust", "pictures", "self-influence", "credit-label"}
    assert sections(run) == always
    measure(run, {"trak": 40})
    assert sections(run) == always  # one comparison is no curve
    measure(run, {"trak": 30}, timesteps=2)
    assert sections(run) == always | {"curves"}
    keep_counterfactual(run.folder / "counterfactual", None)
    assert sections(run) == always | {"curves", "counterfactuals"}


@pytest.mark.parametrize(
    ("methods", "damping", "cost"),
    [
        (["d-trak"], 0.1, "10,060 gradient passes: 10 noised copies of each image<"),
        (["trak", "d-trak"], "0.1", "20,120 gradient passes: 10 noised copies of each image, for 2 objectives"),
        (["d-trak"], "auto", "20,060 gradient passes: 10 noised copies of each image, for 2 objectives"),
        (["gradient-dot"], "auto", "10,060 gradient passes: 10 noised copies of each image<"),
        (["random"], "auto", None),
    ],
)
def test_the_cost_counts_every_pass(run: Run, methods: list[str], damping: float | str, cost: str | None) -> None:
    keep(
        run,
        {name: load_scores(run.folder / "scores.npz")["trak"] for name in ["trak"]},
        QUERIES,
        methods,
        damping=damping,
    )
    page = write_report(run).read_text()
    assert (cost in page) if cost else ("gradient passes" not in page)


def test_the_lds_of_the_same_settings_is_shown_with_its_ceiling(run: Run) -> None:
    measure(run, {"trak": 42.0, "datamodel": -7.25}, ceiling=66.6, damping="0.1")
    measure(run, {"trak": 11.0}, timesteps=2)
    page = write_report(run).read_text()
    assert "42.0 ± 1.5" in page
    assert "−7.2 ± 1.5" in page
    assert "the noise ceiling, 66.6" in page
    assert "11.0 ± 1.5</td>" not in page.partition('id="pictures"')[0]
    assert 'class="warning"' not in page


def test_a_damping_that_was_chosen_for_the_measurement_is_said(run: Run) -> None:
    measure(run, {"trak": 42.0}, damping="chosen")
    assert (
        "This was measured with other settings than these scores have: damping chosen, not"
        in write_report(run).read_text()
    )


def test_scores_of_other_pictures_are_not_shown(run: Run) -> None:
    scores = load_scores(run.folder / "scores.npz")
    for side, words in (("train", "the training images have changed"), ("queries", "the pictures have changed")):
        asked = asked_of(run, QUERIES, list(scores))
        asked["facts"][side]["pixels"] = "0" * 32
        save_scores(run.folder / "scores.npz", {name: replace(one, question=asked) for name, one in scores.items()})
        with pytest.raises(UsageError, match=f"{words} since its scores were made"):
            write_report(run)


def test_a_ceiling_below_zero_stays_on_the_scale(run: Run) -> None:
    measure(run, {"trak": 12.0}, ceiling=-50.0)
    measure(run, {"trak": 13.0}, ceiling=-50.0, timesteps=2)
    assert run.asked is not None
    found = trust(read_measurements(run), run.asked["facts"])
    assert found is not None
    assert found.percent(-50) == 0
    assert found.percent(found.methods["trak"].high) == 100
    drawn = plot(setting_curves(read_measurements(run))[0])
    assert drawn.ceiling is not None
    assert drawn.lines["trak"][0].y < drawn.ceiling <= drawn.bottom
    assert "the noise ceiling, −50.0" in write_report(run).read_text()


def test_the_lds_of_other_settings_says_so(run: Run) -> None:
    measure(run, {"trak": 11.0}, timesteps=2, projection_dim=64)
    page = write_report(run).read_text()
    assert "timesteps 2, not 10; dimensions 64, not 4096" in page
    assert "The noise ceiling is unknown" in page


def test_an_lds_without_settings_is_shown_as_unknown(run: Run) -> None:
    measure(run, {"trak": 42.0})
    path = run.folder / "lds.json"
    content = json.loads(path.read_text())
    del content["settings"], content["question"]
    write_text(path, json.dumps(content))
    for kept in (run.folder / "lds").iterdir():
        kept.unlink()
    assert "are not known" in write_report(run).read_text()


def test_comparisons_with_the_same_settings_are_one(run: Run) -> None:
    measure(run, {"trak": 40, "d-trak": 41})
    measure(run, {"d-trak": 45, "gas": 3})
    measure(run, {"trak": 9}, queries="generated")
    found = read_measurements(run)
    assert [{name: one.lds for name, one in each.methods.items()} for each in found] == [
        {"trak": 40, "d-trak": 45, "gas": 3},
        {"trak": 9},
    ], "those of pictures of the same kind come first"


def test_a_damaged_comparison_is_named(run: Run) -> None:
    write_text(run.folder / "lds" / "0.json", '{"methods": {"trak": {}}}')
    with pytest.raises(DtrakError, match=r"0\.json is not what `dtrak evaluate lds` writes"):
        write_report(run)


def test_curves_run_over_what_alone_differs(run: Run) -> None:
    for timesteps, lds in ((10, 40.0), ("2", 30.0), (100, 44.0)):
        measure(run, {"trak": lds, "d-trak": lds + 1, "raw-pixel-dot": 5}, timesteps=timesteps)
    measure(run, {"trak": 20}, timesteps=2, projection_dim=64)  # differs in two from most: a curve over k at K = 2
    measure(run, {"trak": 99}, timesteps="cumulative:10")  # of another kind
    curves = {curve.title: curve for curve in setting_curves(read_measurements(run))}
    assert curves.keys() == {"K", "k"}
    assert [(one.x, one.lds, one.std) for one in curves["K"].lines["trak"]] == [
        (2, 30, 1.5),
        (10, 40, 1.5),
        (100, 44, 1.5),
    ]
    assert curves["K"].lines.keys() == {"trak", "d-trak"}  # pixels know no timesteps
    assert curves["K"].log
    assert [(one.x, one.lds) for one in curves["k"].lines["trak"]] == [(64, 20), (4096, 30)]


def test_the_objective_gives_eta_and_ensembles_their_size(run: Run) -> None:
    measure(run, {"trak": 40, "d-trak": 45, "trak-ensemble": 50})
    measure(run, {"trak": 40, "d-trak": 47, "trak-ensemble": 50}, objective="interpolated(0.7)")
    measure(run, {"trak": 40, "d-trak": 45, "trak-ensemble": 46}, ensemble_size=2)
    curves = {curve.title: curve for curve in setting_curves(read_measurements(run))}
    assert {name: list(curve.lines) for name, curve in curves.items()} == {"η": ["d-trak"], "S": ["trak-ensemble"]}
    assert [(one.x, one.lds) for one in curves["η"].lines["d-trak"]] == [(0.7, 47), (1, 45)]


def test_the_damping_that_was_tried_is_a_curve_with_the_chosen_one_marked(run: Run) -> None:
    measure(run, {"trak": 40}, curve=[(0.01, 20.0), (0.1, 41.0), (1.0, 30.0)])
    curve = damping_curve(read_measurements(run))
    assert curve is not None
    assert [(one.x, one.lds, one.chosen) for one in curve.lines["trak"]] == [
        (0.01, 20, False),
        (0.1, 41, True),
        (1.0, 30, False),
    ]
    page = write_report(run).read_text()
    assert "LDS against damping λ" in page
    assert page.count('class="mark open"') == 1


def test_a_plot_keeps_its_points_inside_and_in_order() -> None:
    line = [Sample(2, -5, 2), Sample(10, 30, 1), Sample(1000, 38, 3)]
    found = plot(Curve("K", "K", {"trak": line}, "", True, 60.0))
    points = found.lines["trak"]
    assert [point.x for point in points] == sorted(point.x for point in points)
    assert points[0].y > points[1].y > points[2].y  # up is up
    assert points[0].low is not None
    assert points[0].low > points[0].y
    for point in points:
        assert found.left <= point.x <= found.right
        assert TOP <= point.y <= found.bottom
    assert found.ceiling is not None
    assert TOP <= found.ceiling < points[2].y


@given(low=st.floats(-1e3, 1e3), span=st.floats(0, 1e3))
def test_ticks_are_round_and_enclose(low: float, span: float) -> None:
    ticks = nice_ticks(low, low + span)
    step = ticks[1] - ticks[0]
    assert ticks[0] <= low + 1e-6 * step
    assert ticks[-1] >= low + span - 1e-6 * step
    assert 2 <= len(ticks) <= 9


def test_few_values_are_their_own_ticks_and_many_become_powers() -> None:
    assert x_tick_values([2, 5, 10], log=True) == [2, 5, 10]
    assert x_tick_values([10.0 ** (power / 2) for power in range(-10, 7)], log=True) == pytest.approx(
        [1e-5, 1e-3, 0.1, 10, 1000]
    )
    assert [plain_value(value) for value in (1e-5, 0.3, 10.0, 4096.0)] == ["10⁻⁵", "0.3", "10", "4,096"]
    within_a_power = [0.2 + 0.1 * step for step in range(8)]
    assert x_tick_values(within_a_power, log=True) == pytest.approx([0.2, 0.4, 0.6, 0.8])


def test_self_influence_is_ranked_within_each_class(run: Run) -> None:
    scores = Scores.load(run.folder / "scores.npz", "d-trak")
    own, labels = scores.self_influence, scores.columns["label"]
    assert own is not None
    found = self_influence_by_class(scores)
    assert [one.name for one in found.classes] == list(range(10))
    for one in found.classes:
        members = np.flatnonzero(labels == one.name)
        rising = members[np.argsort(own[members])]
        assert [match.position for match in one.most] == rising[::-1][:4].tolist()
        assert [match.position for match in one.least] == rising[:4].tolist()
        assert one.count == len(members)
    page = write_report(run).read_text()
    assert page.count('data-self-influence-by="') == 2  # random has none
    assert f"the median over all training images is {np.median(own):.3f}" in page


def test_methods_that_share_a_kernel_share_their_self_influence(run: Run) -> None:
    scores = load_scores(run.folder / "scores.npz")
    trak = scores["trak"]
    save_scores(run.folder / "scores.npz", {**scores, "relative-if": replace(trak, method="relative-if")})
    shown = re.findall(r'data-self-influence-by="([\w-]+)"', write_report(run).read_text())
    assert shown == ["trak", "d-trak"]


def test_what_is_known_of_an_image_is_said_up_to_a_length() -> None:
    assert described({"label": 3, "artist": None, "caption": "a pond"}) == "label 3, caption a pond"
    long = described({"caption": "lily " * 1000, "label": 3})
    assert len(long) <= 300
    assert long.endswith("…")


def test_no_image_of_a_small_class_is_both_most_and_least() -> None:
    columns = {"artist": np.array(["a", "b", "b", "b"])}
    own = np.array([0.4, 0.1, 0.3, 0.2], dtype=np.float32)
    scores = Scores(np.ones((1, 4), np.float32), np.arange(4), np.arange(1), "trak", columns, own)
    ends = [([m.id for m in one.most], [m.id for m in one.least]) for one in self_influence_by_class(scores).classes]
    assert ends == [([0], []), ([2], [1])]


def keep_counterfactual(folder: Path, step: int | None) -> Counterfactual:
    queries = load_images("digits:validation").select([3, 5, 8])
    object.__setattr__(queries, "columns", {**queries.columns, "seed": np.arange(3)})
    random = np.random.default_rng(0)
    pictures = random.integers(0, 256, (3, 3, 8, 8, 1), dtype=np.uint8)  # of the originals and of two methods
    effects = [
        Effect(name, pictures[place], random.random(3) + 1, random.random(3))
        for place, name in ((1, "random"), (2, "trak"))
    ]
    made_by = {"train": 1000, "removed": 200, "encoder": "some/clip"}
    found = Counterfactual(step, queries, pictures[0], effects, made_by)
    write_result(found, folder)
    return found


def test_counterfactuals_are_shown_at_every_step_with_their_distances(run: Run) -> None:
    home = run.folder / "counterfactual"
    end, early, late = (
        keep_counterfactual(folder, step)
        for folder, step in ((home, None), (home / "step-400", 400), (home / "step-300", 300))
    )
    found = read_counterfactuals(run.folder)
    assert [one.step for one in found] == [None, 300, 400]
    for one, expected in zip(found, (end, late, early), strict=True):
        for q, original in enumerate(one.originals):
            np.testing.assert_array_equal(one.shown[original.picture].read(), expected.originals[q])
            for redrawn, effect in zip(original.redrawn, expected.effects, strict=True):
                assert redrawn.method == effect.method
                assert (redrawn.l2, redrawn.cosine) == (effect.l2[q], effect.cosine[q])
                np.testing.assert_array_equal(one.shown[redrawn.picture].read(), effect.pictures[q])
        for panel, values in zip(one.panels, ("l2", "cosine"), strict=True):
            for box, effect in zip(panel.boxes, expected.effects, strict=True):
                quartiles = np.percentile(getattr(effect, values), [25, 50, 75])
                assert (box.first, box.median, box.third) == pytest.approx(tuple(quartiles))
                assert 0 < panel.percent(box.low) <= panel.percent(box.high) < 100
    page = write_report(run).read_text()
    assert "without the 200 of 1,000 training images" in page
    assert "at timestep 400" in page
    assert f"ℓ2 {end.effects[1].l2[2]:.2f}" in page
    assert f"cos {late.effects[0].cosine[1]:.3f}" in page


def test_a_damaged_counterfactual_is_named(run: Run) -> None:
    keep_counterfactual(run.folder / "counterfactual", None)
    (run.folder / "counterfactual" / "pictures.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(DtrakError, match="counterfactual is not what `dtrak evaluate counterfactual` writes"):
        write_report(run)


def test_credit_of_one_picture_is_its_shares(run: Run) -> None:
    page = write_report(run).read_text()
    kept = json.loads(re.findall(r'<script type="application/json">(.*?)</script>', page)[0])
    scores = Scores.load(run.folder / "scores.npz", "trak")
    credit = scores.groups("label")
    groups, shares = credit.names, credit.shares
    assert [name for name, _ in kept["groups"]] == [str(group) for group in groups]
    labels = scores.columns["label"]
    expected = [100 * np.mean(labels == group) for group in groups]
    assert [share for _, share in kept["groups"]] == pytest.approx(expected, abs=0.006)
    assert kept["shares"].keys() == {"trak", "d-trak", "random"}
    for row, largest in zip(shares, kept["shares"]["trak"], strict=True):
        assert [place for place, *_ in largest] == np.argsort(-row, kind="stable")[:12].tolist()
        assert [share for _, share, *_ in largest] == pytest.approx(np.sort(100 * row)[::-1][:12], abs=0.051)


def test_pictures_beyond_the_budget_become_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (8, 96, 96, 3), dtype=np.uint8)
    pictures = {f"t{n}": ShownPicture(lambda n=n: pixels[n], 128) for n in range(8)}  # type: ignore[misc]
    whole = embedded(pictures)
    budget = sum(map(len, whole.values())) // 3
    monkeypatch.setattr(html_pictures, "BUDGET", budget)
    smaller = embedded(pictures)
    assert smaller.keys() == whole.keys()
    assert budget / 4 < sum(map(len, smaller.values())) <= budget
