"""The explorer's server: its answers are the scores, for every damping, also about pictures that it has never seen."""

import csv
import io
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from PIL import Image

import dtrak
import tiny
from commands import dtrak as command
from conftest import TINY
from dtrak.attribution.answer import score
from dtrak.attribution.attribute import question_about
from dtrak.attribution.formula_inputs import Fitted, Input
from dtrak.attribution.opened import Opened
from dtrak.attribution.settings import Settings
from dtrak.contracts import EVERY, KernelInput
from dtrak.explorer.exploration import Scored
from dtrak.explorer.guard import FORMATS
from dtrak.explorer.server import is_loopback, listen
from dtrak.images.images import ImageSource
from dtrak.kernels.damping import Damping
from dtrak.kernels.ridge import Eigen, Ridge
from dtrak.kernels.rows import ArrayRows, CopyRows
from dtrak.methods import METHODS
from dtrak.models.model_source import ModelSource
from dtrak.models.sampling import sample, to_pixels
from dtrak.runs.run import Run
from serving import Server, colourful, encoded, served

METHODS_SERVED = ["trak", "d-trak", "relative-if", "raw-pixel-cosine"]
SETTINGS: dict[str, Any] = TINY["attribution"]


@pytest.fixture(scope="module")
def run(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path_factory.mktemp("explorer") / "run"))


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Server]:
    with served(run, "--method", ",".join(METHODS_SERVED)) as started:
        yield started


@pytest.fixture(scope="module")
def scores(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, NDArray[np.float32]]]:
    """What `dtrak.attribute` says about a set of pictures, by method: [Q, N]."""
    opened, cache = Run.open(run), tmp_path_factory.mktemp("cache")

    def attributed(source: str, damping: str) -> dict[str, NDArray[np.float32]]:
        images = opened.query_images(source)
        queries = images.select(range(min(200, len(images))))
        found = dtrak.attribute(
            opened.model(), opened.train_images, queries, METHODS_SERVED, damping=damping, cache=cache, **SETTINGS
        )
        return {name: one.values for name, one in found.items()}

    return attributed


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def values(text: str) -> NDArray[np.float64]:
    """The scores [N] of a table about one picture, in the order of the training images."""
    return np.array([float(row["score"]) for row in sorted(rows(text), key=lambda row: int(row["train"]))])


def assert_equal_scores(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


# answers


@pytest.mark.parametrize("damping", ["0.03", "auto", "spectrum", "absolute:2"])
def test_a_pictures_scores_are_those_of_attribute(server: Server, run: Path, scores: Any, damping: str) -> None:
    expected = scores(str(run / "generated"), damping)
    for method in METHODS_SERVED:
        asked = {"query": "seed-00002.png", "method": method, "damping": damping}
        table = server.get("scores.csv", **asked)
        assert_equal_scores(values(table), expected[method][2])
        answer = server.get("answer", count=7, **asked)
        order = np.argsort(-expected[method][2], kind="stable")
        assert [int(one["id"]) for one in answer["proponents"]] == order[:7].tolist()
        opponents = [one["score"] for one in answer["opponents"]]
        assert opponents == sorted(opponents)
        assert all(score < 0 for score in opponents)
        assert [int(row["train"]) for row in rows(table)[:7]] == order[:7].tolist()


@pytest.mark.parametrize("source", ["generated", "validation"])
def test_the_transposed_question_has_the_same_scores(server: Server, run: Path, scores: Any, source: str) -> None:
    expected = scores(str(run / "generated") if source == "generated" else "digits:validation", "0.5")
    for method in METHODS_SERVED:
        answer = server.get("transpose", train=17, set=source, method=method, damping=0.5, count=500)
        found = {one["number"]: one["score"] for one in answer["proponents"] + answer["opponents"]}
        column = expected[method][:, 17]
        assert len(found) == len(column)
        assert_equal_scores([found[query] for query in range(len(column))], column)
        assert answer["total"] == pytest.approx(float(column.sum()), rel=1e-3)


def test_training_images_by_their_influence(server: Server, run: Path, scores: Any) -> None:
    expected = scores(str(run / "generated"), "0.2")
    for method in METHODS_SERVED:
        page = server.get("train", sort="total", method=method, damping=0.2, size=20)
        total = expected[method].sum(0)
        assert_equal_scores([one["score"] for one in page["items"]], np.sort(total)[::-1][:20])
        assert page["total"] == 1000


def test_self_influence_is_the_diagonal_of_the_kernel(server: Server, run: Path) -> None:
    page = server.get("train", sort="self", method="d-trak", damping=0.2, size=500)  # the features are complete then
    store = next(run.glob("features/train-square-*"))
    features = dtrak.features.FeatureStore.open(store).numpy().astype(np.float64)
    damping = 0.2 * (features**2).sum() / len(features)
    inverse = np.linalg.inv(features.T @ features + damping * np.eye(features.shape[1]))
    expected = np.einsum("nk,kl,nl->n", features, inverse, features)
    assert_equal_scores([one["score"] for one in page["items"]], np.sort(expected)[::-1][:500])
    answer = server.get("transpose", train=5, method="d-trak", damping=0.2)
    assert answer["self_influence"] == pytest.approx(expected[5], rel=1e-6)
    assert server.get("transpose", train=5, method="relative-if")["self_influence"] is None


def test_the_slider_is_told_where_the_rules_lie(server: Server, run: Path) -> None:
    scale = server.get("damping", method="d-trak", damping=0.2)  # the features are complete then
    kernel = Ridge.of(CopyRows([dtrak.features.FeatureStore.open(next(run.glob("features/train-square-*")))]))
    assert scale["relative"] == pytest.approx(0.2)
    mean_eigenvalue = kernel.trace / kernel.size
    absolute = 0.2 * mean_eigenvalue
    assert scale["dimension"] == pytest.approx((kernel.eigenvalues / (kernel.eigenvalues + absolute)).sum())
    assert scale["rank"] == len(kernel.eigenvalues)
    spectrum = Damping.parse("spectrum").absolute(kernel) / mean_eigenvalue
    assert scale["marks"]["spectrum"]["relative"] == pytest.approx(spectrum)
    assert set(scale["marks"]) == {"auto", "spectrum"}  # the recipe's is auto
    assert server.get("damping", method="raw-pixel-cosine") == {}


def test_credit_is_shared_as_in_scores(server: Server, run: Path) -> None:
    train = Run.open(run).train_images
    table = server.get("scores.csv", query="seed-00001.png", damping=0.1)
    one = dtrak.Scores(values(table)[None].astype(np.float32), train.ids, np.array([1]), "trak", train.columns)
    found = server.get("answer", query="seed-00001.png", damping=0.1)["credit"]["label"]
    assert [group["group"] for group in found] == [str(credit.group) for credit in one.credit("label")]
    np.testing.assert_allclose([group["share"] for group in found], [credit.share for credit in one.credit("label")])
    intervals = [[credit.low, credit.high] for credit in one.credit("label")]
    np.testing.assert_allclose([group["interval"] for group in found], intervals)
    fours = np.mean(train.columns["label"] == 4)
    assert next(group["of_training"] for group in found if group["group"] == "4") == pytest.approx(fours)


def test_all_scores_of_a_set_are_one_table(server: Server) -> None:
    table = rows(server.get("scores.csv", method="d-trak", damping=0.1))
    assert Counter(row["query"] for row in table) == {f"seed-0000{seed}.png": 1000 for seed in range(4)}
    assert list(table[0]) == ["query", "rank", "train", "score", "label", "damping"]
    one = rows(server.get("scores.csv", method="d-trak", damping=0.1, query="seed-00003.png"))
    assert one == table[3000:]


def test_search_filter_and_pages(server: Server, run: Path) -> None:
    labels = Run.open(run).train_images.columns["label"]
    threes = np.flatnonzero(labels == 3)
    found = server.get("train", label=3, size=10, page=2)
    assert found["total"] == len(threes)
    assert [one["number"] for one in found["items"]] == threes[20:30].tolist()
    assert [one["id"] for one in server.get("train", search="999")["items"]] == ["999"]
    assert server.get("train", search="no such thing")["total"] == 0
    assert server.get("train", search="", page=99)["items"][-1]["number"] == len(labels) - 1  # the last there is
    assert [one["id"] for one in server.get("queries", search="SEED 00002")["items"]] == ["seed-00002.png"]


def test_images_are_served_as_they_are(server: Server, run: Path) -> None:
    response = server.client.get("/images/small/train/12")
    pixels = np.asarray(Image.open(io.BytesIO(response.content)))
    np.testing.assert_array_equal(pixels, Run.open(run).train_images.pixels([12])[0, ..., 0])
    assert response.headers["content-type"] == "image/png"


def test_without_a_second_objective_auto_is_not_offered(own_run: Path) -> None:
    (own_run / "scores.npz").unlink()
    content = yaml.safe_load((own_run / "recipe.yaml").read_text())
    content["attribution"] |= {"method": "d-trak", "damping": 0.25}
    (own_run / "recipe.yaml").write_text(yaml.safe_dump(content))
    with served(own_run) as server:
        assert [one["name"] for one in server.get("run")["methods"]] == ["d-trak"]
        scale = server.get("damping")
        assert set(scale["marks"]) == {"spectrum", "recipe"}
        assert scale["marks"]["recipe"] == {"damping": "0.25", "relative": pytest.approx(0.25)}
        response = server.client.get("/api/answer", params={"query": "seed-00001.png", "damping": "auto"})
        assert response.status_code == 422
        assert "--damping auto" in response.json()["error"]


def test_what_the_last_attribution_asked_about_is_there(own_run: Path) -> None:
    asked = own_run.parent / "mine"
    shutil.copytree(own_run / "generated", asked)
    done = command("attribute", own_run, "--queries", asked, "--method", "gradient-dot,d-trak", cwd=own_run.parent)
    assert done.code == 0, done.err
    with served(own_run) as server:
        about = server.get("run")
        assert [one["name"] for one in about["methods"]] == ["gradient-dot", "d-trak"]
        assert [one["name"] for one in about["sets"]] == ["generated", "validation", "attributed", "asked"]
        kept = dtrak.Scores.load(own_run / "scores.npz", "gradient-dot")
        table = server.get("scores.csv", set="attributed", query="seed-00001.png", method="gradient-dot")
        assert_equal_scores(values(table), kept.values[1])
    shutil.rmtree(asked)
    with served(own_run) as server:
        assert [one["name"] for one in server.get("run")["sets"]] == ["generated", "validation", "asked"]


def test_what_a_method_cannot_answer_is_said(own_run: Path) -> None:
    with served(own_run, "--method", "journey-trak,trak") as server:
        assert len(server.get("answer", query="seed-00001.png", method="journey-trak")["proponents"]) == 10
        response = server.client.get("/api/answer", params={"set": "validation", "query": 3, "method": "journey-trak"})
        server.wait(response.json()["question"])
        response = server.client.get("/api/answer", params={"set": "validation", "query": 3, "method": "journey-trak"})
        assert response.status_code == 422
        assert "no column 'seed'" in response.json()["error"]
        drawn = server.answered(server.ask(seed=9))
        assert len(server.get("answer", set="asked", query=drawn, method="journey-trak")["proponents"]) == 10


# new questions


def test_other_queries_cost_no_more_than_themselves(tmp_path: Path) -> None:
    model, passes = tiny.unet(), Counter[int]()
    train, queries = dtrak.load_images("digits:train").select(range(40)), dtrak.load_images("digits:validation")
    settings: dict[str, Any] = {"timesteps": 3, "projection_dim": 64, "batch_size": 1}
    method, damping = METHODS["trak"], Damping.parse("0.1")
    question = question_about(
        ModelSource(model), train, queries.select([0]), [method], Settings(damping=0.1, **settings), None
    )
    opened = Opened(question, tmp_path)
    score(opened, method, [damping])
    model.network.register_forward_hook(lambda module, inputs, output: passes.update([len(inputs[0])]))
    others = queries.select([5, 3])
    (found,), _, _ = score(opened.with_queries(ImageSource(others)), method, [damping])
    assert passes[3] == 2  # three copies of each
    expected = dtrak.attribute(model, train, others, "trak", damping=0.1, **settings)
    np.testing.assert_allclose(found, expected.values, rtol=1e-5, atol=1e-7)


def test_an_uploaded_picture_is_fitted_scored_and_kept(server: Server, run: Path, scores: Any) -> None:
    id_ = server.answered(server.ask(picture=("big.png", colourful(100))))
    kept = run / "asked" / id_
    image = Image.open(io.BytesIO(colourful(100))).convert("L").crop((15, 0, 115, 100))
    fitted = image.resize((8, 8), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(np.asarray(Image.open(kept)), np.asarray(fitted))
    expected = scores(str(kept), "0.07")
    for method in METHODS_SERVED:
        table = server.get("scores.csv", set="asked", query=id_, method=method, damping=0.07)
        assert_equal_scores(values(table), expected[method][0])
    assert "asked" in {one["name"] for one in server.get("run")["sets"]}
    again = server.ask(picture=("other-name.png", colourful(100))).json()["question"]
    assert (again["state"], again["result"]) == ("done", id_)


def test_a_seed_is_drawn_and_scored(server: Server, run: Path, scores: Any) -> None:
    id_ = server.answered(server.ask(seed=123))
    opened = Run.open(run)
    drawn = to_pixels(sample(opened.model(), [123], opened.recipe.generation.steps).pictures)[0, ..., 0]
    np.testing.assert_array_equal(np.asarray(Image.open(run / "asked" / id_)), drawn)
    table = server.get("scores.csv", set="asked", query=id_, method="trak", damping=0.1)
    assert_equal_scores(values(table), scores(str(run / "asked" / id_), "0.1")["trak"][0])
    assert server.ask(seed=123).json()["question"]["state"] == "done"


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_read(server: Server, kind: str) -> None:
    id_ = server.answered(
        server.ask(picture=("x", encoded(Image.new("RGB", (20, 30), (FORMATS.index(kind), 90, 30)), kind)))
    )
    assert server.get("answer", set="asked", query=id_)["query"]["id"] == id_


def test_asked_pictures_are_there_after_a_restart(own_run: Path) -> None:
    with served(own_run) as server:
        ids = [server.answered(server.ask(seed=5)), server.answered(server.ask(picture=("a", colourful(9))))]
        before = [server.get("answer", set="asked", query=one) for one in ids]
        stores = sorted(path.name for path in own_run.glob("features/*"))
    with served(own_run) as server:
        assert [server.get("answer", set="asked", query=one) for one in ids] == before
        assert server.get("queries", set="asked")["items"][0]["columns"] == {"seed": 5}
        assert [one["id"] for one in server.get("queries", set="asked", sort="newest")["items"]] == ids[::-1]
        transposed = server.get("transpose", set="asked", train=3)
        assert len(transposed["proponents"] + transposed["opponents"]) == 2
    assert sorted(path.name for path in own_run.glob("features/*")) == stores


def test_one_damping_of_five_thousand_images_takes_no_solve() -> None:
    random, count = np.random.default_rng(0), 5000
    values, dual = np.sort(random.random(count)), random.random((count, count))
    kernel = Ridge(ArrayRows(np.empty((count, 0))), lambda: Eigen(values, dual, count, is_outer=True))
    fitted, coordinates = Fitted(kernel, lambda one: one.absolute(kernel)), random.random((3, 1, count))
    live = Scored(METHODS["d-trak"], [Input(KernelInput(kernel, coordinates, EVERY), fitted)])
    live.scores(Damping.parse("0.1"), slice(0, 1))  # finds the mean eigenvalue, once
    taken = []
    for damping in ("0.01", "0.2", "3", "1", "0.5"):
        started = time.process_time()
        scores = live.scores(Damping.parse(damping), slice(1, 2))
        taken.append(time.process_time() - started)
    assert min(taken) < 0.1
    weights = 1 / (values + 0.5 * values.sum() / count)
    np.testing.assert_allclose(scores[0], dual @ (weights * coordinates[1, 0]), rtol=1e-5)


# the command


def test_a_run_without_a_model_is_refused(own_run: Path) -> None:
    shutil.rmtree(own_run / "model")
    outcome = command("serve", own_run, "--no-browser", cwd=own_run.parent)
    assert outcome.code == 2
    assert "has no model yet" in outcome.error


def test_a_port_in_use_is_passed_over_unless_it_was_asked_for(own_run: Path) -> None:
    with listen("127.0.0.1", None) as first, listen("127.0.0.1", None) as second:
        assert 8321 <= first.getsockname()[1] < second.getsockname()[1]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outcome = command("serve", own_run, "--no-browser", "--port", port, cwd=own_run.parent)
        assert outcome.code == 1
        assert str(port) in outcome.error
    for arguments, named in ((["--port", "70000"], "70000"), (["--host", "no such host"], "no such host")):
        outcome = command("serve", own_run, "--no-browser", *arguments, cwd=own_run.parent)
        assert outcome.code == 2
        assert named in outcome.error


def test_only_this_machine_is_let_in_unless_told_otherwise() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.0.0.2", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "192.168.0.7", "::", "example.org")))
