"""What the user has made is neither removed nor written over, whatever its name; what killed processes left is."""

import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from commands import Outcome, dtrak, dtrak_started
from dtrak.errors import UsageError
from dtrak.files import DAY, MACHINE, clear_leftovers, kept_until_done, write_bytes
from dtrak.runs.run import Run

MakeRecipe = Callable[..., Path]
DEAD = f"dtrak-{MACHINE}-{2**22}-0"  # Linux gives no process a higher number than 4,194,303


def attributed(run: Path, cwd: Path, *more: object) -> Outcome:
    model = ("--model", run / "model", "--train", "digits:train", "--queries", run / "generated")
    return dtrak("attribute", *model, "--method", "random", *more, cwd=cwd)


# folders beside the output


def test_a_features_folder_of_the_users_is_refused_and_kept(finished_run: Path, tmp_path: Path) -> None:
    mine = tmp_path / "s.npz.features" / "thesis.tex"
    mine.parent.mkdir()
    mine.write_text("years of work")
    outcome = attributed(finished_run, tmp_path, "--out", "s.npz")
    assert (outcome.code, outcome.error) == (
        2,
        "s.npz.features is not a folder that dtrak made: move it away, or give --cache FOLDER for features",
    )
    assert mine.read_text() == "years of work"
    assert attributed(finished_run, tmp_path, "--out", "s.npz", "--cache", "c").code == 0
    assert mine.read_text() == "years of work"


def test_features_beside_the_output_go_when_they_have_served_and_no_sooner(tmp_path: Path) -> None:
    out, beside = tmp_path / "s.npz", tmp_path / "s.npz.features"
    with suppress(RuntimeError), kept_until_done(None, out) as cache:
        write_bytes(cache / "shard", b"1")
        raise RuntimeError("the work has failed")
    assert (beside / "shard").exists()
    with kept_until_done(None, out) as cache:
        assert cache == beside
    assert os.listdir(tmp_path) == []
    (tmp_path / "mine").mkdir()
    beside.symlink_to("mine")
    with pytest.raises(UsageError, match="not a folder that dtrak made"), kept_until_done(None, out):
        pass
    assert (tmp_path / "mine").is_dir()


# generated pictures


def test_what_someone_put_among_the_pictures_stays_with_them(own_run: Path, tmp_path: Path) -> None:
    (own_run / "generated" / "notes.txt").write_text("the third is the best")
    for count in (2, 3):
        outcome = dtrak("generate", own_run, "--count", count, cwd=tmp_path)
        assert outcome.code == 0, outcome.err
        assert (own_run / "generated" / "notes.txt").read_text() == "the third is the best"
        assert len(list((own_run / "generated").glob("*.png"))) == count
    assert not (own_run / "generated-unfinished").exists()
    assert dtrak("attribute", own_run, "--method", "random", cwd=tmp_path).code == 0


def test_a_folder_where_pictures_would_be_gathered_is_refused_and_kept(own_run: Path, tmp_path: Path) -> None:
    mine = own_run / "generated-unfinished" / "seed-00000.png"
    mine.parent.mkdir()
    mine.write_bytes(b"mine")
    outcome = dtrak("generate", own_run, "--count", 2, cwd=tmp_path)
    assert outcome.code == 2
    assert outcome.error.endswith("is not a folder that dtrak made: move it away, as pictures are collected there")
    assert mine.read_bytes() == b"mine"


# what is read, and other people's folders


def test_the_output_is_no_file_that_is_read(own_run: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "q.npz", images=np.zeros((2, 8, 8), np.uint8))
    (tmp_path / "link.npz").symlink_to("q.npz")
    before, recipe = (tmp_path / "q.npz").read_bytes(), (own_run / "recipe.yaml").read_text()
    for out, read in (("q.npz", "q.npz"), ("link.npz", "q.npz"), (own_run / "recipe.yaml", own_run / "recipe.yaml")):
        outcome = dtrak("attribute", own_run, "--queries", "q.npz", "--out", out, cwd=tmp_path)
        assert (outcome.code, outcome.error) == (2, f"{out} is also the input {read}: give another file to write")
    assert (tmp_path / "q.npz").read_bytes() == before
    assert (own_run / "recipe.yaml").read_text() == recipe
    asked = ("evaluate", "lds", own_run, "--out", "t.csv", "--table", "./t.csv")
    assert "--out and --table both name t.csv" in dtrak(*asked, cwd=tmp_path).error


@pytest.mark.parametrize("name", ["model/weights", "generated/mine.png", "run.json"])
def test_a_folder_that_is_no_run_is_not_taken_for_one(name: str, recipe: MakeRecipe, tmp_path: Path) -> None:
    mine = tmp_path / "project" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    (tmp_path / "project" / ".notes.0badcafe.tmp").touch()  # by another program with the same habits
    outcome = dtrak("train", recipe(), "--out", "project", cwd=tmp_path)
    assert outcome.code == 2
    assert f"project is not a run, but has {name.split('/')[0]}" in outcome.error
    assert mine.read_text() == "mine"
    assert sorted(os.listdir(tmp_path / "project")) == sorted([".notes.0badcafe.tmp", name.split("/")[0]])


def test_a_recipe_that_says_the_same_keeps_its_comments(own_run: Path) -> None:
    path = own_run / "recipe.yaml"
    path.write_text("# my own words\n" + path.read_text())
    Run.create(own_run, Run.open(own_run).recipe)
    assert path.read_text().startswith("# my own words\n")


EMPTY = ("demo --out", "run digits --out", "train digits --out", "attribute run --out", "attribute run --cache")
EMPTY += ("evaluate lds run --out", "evaluate lds run --table", "evaluate counterfactual run --table")


@pytest.mark.parametrize("line", EMPTY)
def test_an_empty_name_is_refused(line: str, tmp_path: Path) -> None:
    outcome = dtrak(*line.split(), "", cwd=tmp_path)
    assert outcome.code == 2
    assert outcome.error == f"Invalid value for '{line.split()[-1]}': the name is empty (--help tells more)"
    assert os.listdir(tmp_path) == []


# what killed processes have left


def test_leftovers_are_cleared_everywhere_in_a_run_and_beside_the_output(own_run: Path, tmp_path: Path) -> None:
    features = next(path for path in own_run.rglob("features/*/*") if path.is_dir())
    (own_run / "lds").mkdir(exist_ok=True)
    places = [own_run / "report.html", own_run / "lds" / "x.json", features / "cost.json", tmp_path / "s.csv"]
    leftovers = [path.with_name(f".{path.name}.{DEAD}.tmp") for path in places]
    for path in leftovers:
        path.write_bytes(b"half")
    (own_run / f".model.{DEAD}.tmp" / "unet").mkdir(parents=True)
    mine = [".s.csv.tmp", ".s.csv.backup.tmp", ".s.csv.0badcafe.tmp", f".s.csv.{DEAD}x.tmp", f"s.csv.{DEAD}.tmp"]
    for name in mine:
        (tmp_path / name).write_text("mine")
    assert dtrak("attribute", own_run, "--method", "random", "--out", "s.csv", cwd=tmp_path).code == 0
    assert not [path for path in (*leftovers, own_run / f".model.{DEAD}.tmp") if path.exists()]
    assert all((tmp_path / name).read_text() == "mine" for name in mine)


def test_what_a_living_process_writes_is_left_to_it_and_cleared_when_it_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from dtrak.files import temporary\n"
        "with temporary(Path(sys.argv[1])) as file, temporary(Path(sys.argv[2])) as folder:\n"
        "    file.touch(); folder.mkdir(); (folder / 'part').touch(); print('writing', flush=True); time.sleep(600)\n"
    )
    place = [str(tmp_path / "file"), str(tmp_path / "folder")]
    with subprocess.Popen([sys.executable, "-c", script, *place], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        clear_leftovers(tmp_path)
        write_bytes(tmp_path / "file", b"another process writes the same")
        assert len(list(tmp_path.glob(".*.tmp"))) == 2
        writer.kill()
    assert len(list(tmp_path.glob(".*.tmp"))) == 2
    clear_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["file"]


def test_what_another_machine_writes_is_left_to_it_for_a_day(tmp_path: Path) -> None:
    theirs = [tmp_path / f".{name}.dtrak-{'0' * 8}-1-0.tmp" for name in ("now", "long ago")]
    for path in theirs:
        path.touch()
    os.utime(theirs[1], (0, time.time() - 2 * DAY))
    clear_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == theirs[:1]


def test_many_processes_write_one_file_and_clear_each_others_leftovers(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from dtrak.files import write_bytes\n"
        "for number in range(200): write_bytes(Path(sys.argv[1]), bytes([number]) * 4000)\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "file")]) for _ in range(3)]
    ends = time.monotonic() + 60
    while any(writer.poll() is None for writer in writers):
        assert time.monotonic() < ends
        clear_leftovers(tmp_path)
        if (tmp_path / "file").exists():
            assert len(set((tmp_path / "file").read_bytes())) == 1
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert os.listdir(tmp_path) == ["file"]


def test_a_command_that_is_killed_while_it_writes_leaves_nothing_after_the_next(own_run: Path, tmp_path: Path) -> None:
    """Killed in the midst of writing to a slow disk: a pipe that holds little, and that nobody reads, stands for it."""
    os.mkfifo(tmp_path / "slow")
    pipe = os.open(tmp_path / "slow", os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
    asked = ("attribute", own_run, "--method", "random", "--out")
    with dtrak_started(*asked, "slow", cwd=tmp_path) as command:
        assert select.select([pipe], [], [], 60)[0]
        command.signal(signal.SIGKILL)
        assert command.outcome().code == -signal.SIGKILL
    os.close(pipe)
    assert dtrak(*asked, "s.npz", cwd=tmp_path).code == 0
    assert sorted(os.listdir(tmp_path)) == ["run", "s.npz", "slow"]
    assert not list(own_run.rglob(".*.tmp"))
