"""Questions that take work wait their turn, tell how far they have come, and do not end each other."""

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import dtrak
from dtrak.errors import DtrakError
from dtrak.explorer.work_queue import FullError, WorkQueue
from dtrak.progress import progress_bar, steps_of
from serving import PATIENCE, Server, served
from test_explorer import assert_equal_scores, values


def test_a_full_queue_says_so_and_recovers(own_run: Path) -> None:
    content = yaml.safe_load((own_run / "recipe.yaml").read_text())
    content["generation"]["steps"] = 200  # so that each takes its time
    (own_run / "recipe.yaml").write_text(yaml.safe_dump(content))
    with served(own_run) as server:
        responses = [server.ask(seed=seed) for seed in range(24)]
        refused = [one for one in responses if one.status_code == 503]
        accepted = [one for one in responses if one.status_code == 202]
        assert len(refused) + len(accepted) == 24
        assert len(refused) >= 5
        assert len(accepted) >= 8
        assert int(refused[0].headers["retry-after"]) > 0
        assert "too many requests" in refused[0].json()["error"]
        stages = watched(server, accepted[-1].json()["question"]["id"])
        assert {stage["state"] for stage in stages} >= {"waiting", "working", "done"}
        drawing = [stage["done"] for stage in stages if stage["stage"] == "draw"]
        assert drawing == sorted(drawing)
        assert len(set(drawing)) > 3
        assert server.answered(server.ask(seed=99))


def watched(server: Server, id_: str) -> list[dict[str, Any]]:
    """What is told of a question until it has ended."""
    stages, ends = [], time.monotonic() + PATIENCE
    while not stages or stages[-1]["state"] in ("waiting", "working"):
        assert time.monotonic() < ends
        stages.append(server.client.get(f"/api/questions/{id_}").json()["question"])
        time.sleep(0.01)
    return stages


def test_a_question_that_fails_does_not_end_the_others() -> None:
    def fail() -> str:
        raise DtrakError("the disk is full")

    gate = threading.Event()
    queue = WorkQueue(max_waiting=2)

    def wait() -> str:
        gate.wait()
        return "late"

    first = queue.add("wait", "wait", wait)
    while first.state == "waiting":
        time.sleep(0.01)
    failing, last = queue.add("fail", "fail", fail), queue.add("last", "last", lambda: "well")
    assert queue.add("last", "last", lambda: "again") is last
    with pytest.raises(FullError):
        queue.add("more", "more", lambda: None)
    unbounded = queue.add("more", "more", lambda: None, is_bounded=False)
    assert queue.described(unbounded)["ahead"] == 3
    with pytest.raises(FullError):
        queue.add("still more", "still more", lambda: None)
    gate.set()
    while unbounded.state != "done":
        time.sleep(0.01)
    assert (failing.state, failing.error) == ("failed", "the disk is full")
    assert (first.result, last.result) == ("late", "well")
    assert queue.add("fail", "fail", lambda: "now") is not failing
    assert queue.close()


def test_the_servers_own_questions_leave_room_for_others() -> None:
    gate, queue = threading.Event(), WorkQueue(max_waiting=1)
    for number in range(5):
        queue.add(f"own {number}", "own", lambda: gate.wait() and None, is_bounded=False)
    asked = queue.add("mine", "mine", lambda: "answer")
    gate.set()
    while asked.state != "done":
        time.sleep(0.01)
    assert queue.close()


def test_closing_ends_work_at_its_next_step() -> None:
    begun = threading.Event()

    def endless() -> None:
        with progress_bar("work", 10**9, "steps") as advance:
            while True:
                advance(1)
                begun.set()

    queue = WorkQueue()
    question = queue.add("endless", "endless", endless)
    begun.wait()
    assert question.described(0)["unit"] == "steps"
    assert queue.close()


def test_steps_are_told_to_watchers_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(steps_of("draw", [3, 2, 1], "steps")) == [3, 2, 1]
    assert capsys.readouterr() == ("", "")


def test_features_are_computed_while_one_looks(own_run: Path) -> None:
    shutil.rmtree(own_run / "features")
    with served(own_run) as server:
        assert server.client.get("/api/train").json()["total"] == 1000  # before any feature is there
        assert len(server.get("answer", query="seed-00001.png")["proponents"]) == 10
    kept = dtrak.Scores.load(own_run / "scores.npz")
    assert kept.question is not None
    assert kept.question["given"]["methods"] == ["step-trak"]
    with served(own_run) as server:
        table = server.get("scores.csv", query="seed-00001.png", damping=kept.question["given"]["settings"]["damping"])
        assert_equal_scores(values(table), kept.values[1])
