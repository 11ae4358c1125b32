"""The command line as its users see it: help, results on standard output, progress and errors on standard error."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import dtrak, dtrak_fresh, dtrak_started
from dtrak.cli.commands import EVALUATIONS, app
from dtrak.progress import progress_bar
from processes import children

MakeRecipe = Callable[..., Path]
COMMANDS = [
    *("demo", "run", "train", "generate", "attribute", "evaluate", "credit", "report", "serve", "figure", "card"),
    *("info", "index", "search", "plan", "methods", "recipes"),
]


def scores(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


# help


def test_the_commands_are_those_of_the_contract() -> None:
    assert {name for name in app if not name.startswith("-")} == set(COMMANDS)
    assert {name for name in app["evaluate"] if not name.startswith("-")} == {*EVALUATIONS}


def test_help_fits_80_columns_and_tells_of_every_command_and_of_debug(tmp_path: Path) -> None:
    for arguments in ([], ["--help"]):
        outcome = dtrak_fresh(*arguments, cwd=tmp_path, COLUMNS="80")
        assert (outcome.code, outcome.err) == (0, "")
        assert max(map(len, outcome.out.splitlines())) <= 80
        assert re.findall(r"^│ ([a-z]+) ", outcome.out, re.MULTILINE) == COMMANDS
        for word in ("--debug", "--version", "--install-completion", "--show-completion"):
            assert word in outcome.out


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_shows_no_types_of_the_parser(command: str, tmp_path: Path) -> None:
    outcome = dtrak(command, "--help", cwd=tmp_path)
    assert (outcome.code, outcome.err) == (0, "")
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert not re.search(r"--\S+ (<|STR|INT|FLOAT|PATH|BOOL|LIST)", outcome.out), (
        "an option says what it takes in words"
    )


def test_help_is_quick() -> None:
    """It must not import torch."""
    code = "import sys; sys.argv = ['dtrak', '--help']; import dtrak.cli, atexit\n"
    code += (
        "atexit.register(lambda: print(sorted({'torch', 'diffusers', 'numpy'} & set(sys.modules))))\ndtrak.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# what there is


def test_lists_go_to_standard_output(tmp_path: Path) -> None:
    for command, words in {
        "methods": ["trak", "d-trak", "needs", "costs"],
        "recipes": ["digits", "cifar2-small"],
        "info": ["python", "torch", "diffusers", "devices", "cores"],
    }.items():
        outcome = dtrak(command, cwd=tmp_path)
        assert (outcome.code, outcome.err) == (0, "")
        assert all(word in outcome.out for word in words)


def test_a_printed_recipe_is_a_recipe(tmp_path: Path) -> None:
    printed = dtrak("recipes", "digits", cwd=tmp_path).out
    assert "# 0.18 M parameters" in printed, "with its comments"
    (tmp_path / "mine.yaml").write_text(printed)
    assert dtrak("recipes", "mine.yaml", cwd=tmp_path).out == printed


def test_python_m_dtrak_is_dtrak(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "dtrak", "recipes"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, dtrak("recipes", cwd=tmp_path).out)


# a run, from the first command to the last


def test_the_steps_one_by_one_make_what_run_makes(recipe: MakeRecipe, finished_run: Path, tmp_path: Path) -> None:
    steps = {
        "model": ("train", recipe(), "--out", "one"),
        "generated": ("generate", "one"),
        "scores.npz": ("attribute", "one"),
        "report.html": ("report", "one"),
    }
    for made, arguments in steps.items():
        outcome = dtrak(*arguments, cwd=tmp_path)
        assert outcome.code == 0, outcome.err
        assert outcome.out.rstrip().endswith(f": one/{made}"), "standard output says where it is"
        assert (tmp_path / "one" / made).exists()
    assert np.array_equal(
        scores(tmp_path / "one" / "scores.npz")["values"], scores(finished_run / "scores.npz")["values"]
    )
    assert {path.name for path in (tmp_path / "one").iterdir()} == {path.name for path in finished_run.iterdir()}


def test_a_finished_run_is_left_as_it_is(own_run: Path, recipe: MakeRecipe) -> None:
    def written() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in own_run.rglob("*") if path.name != "report.html"}

    # The recipe asks for RUN/generated, and the copy of the run lies elsewhere than the run did.
    assert dtrak("run", recipe(), "--out", own_run, cwd=own_run).code == 0
    before = written()
    trained = dtrak("train", recipe(), "--out", own_run, cwd=own_run)
    assert (trained.code, trained.out, trained.err) == (0, f"The model is trained already: {own_run / 'model'}\n", "")
    again = dtrak("run", recipe(), "--out", own_run, cwd=own_run)
    assert (again.code, again.err) == (0, "")
    assert written() == before


# attribute


def test_both_forms_of_attribute_give_the_same_scores(own_run: Path, tmp_path: Path) -> None:
    settings = ("--method", "trak", "--timesteps", 2, "--projection-dim", 32, "--damping", 0.5, "--seed", 3)
    settings += ("--parameters", "conv_out")
    queries = ("--queries", own_run / "generated")
    of_run = dtrak("attribute", own_run, *queries, *settings, "--out", "run.npz", cwd=tmp_path)
    model = ("--model", own_run / "model", "--train", "digits:train")
    of_model = dtrak("attribute", *model, *queries, *settings, "--out", "model.npz", cwd=tmp_path)
    assert (of_run.code, of_model.code) == (0, 0), of_run.err + of_model.err
    one, other = scores(tmp_path / "run.npz"), scores(tmp_path / "model.npz")
    assert one["values"].dtype == np.float32
    assert one["values"].shape == (4, 1000)
    assert np.array_equal(one["values"], other["values"])
    assert one["train_ids"].tolist() == list(range(1000))
    assert one["query_ids"].tolist() == [f"seed-{seed:05d}.png" for seed in range(4)]


def test_the_same_question_with_another_cache_has_the_same_answer(own_run: Path, tmp_path: Path) -> None:
    asked = ("attribute", own_run, "--method", "trak")
    for cache in ("first", "second"):
        outcome = dtrak(*asked, "--cache", cache, "--out", f"{cache}.npz", cwd=tmp_path)
        assert outcome.code == 0, outcome.err
        (own_run / "scores.npz").unlink()  # or the run would know the answer
    assert (tmp_path / "second").is_dir()
    first, second = scores(tmp_path / "first.npz"), scores(tmp_path / "second.npz")
    assert first["values"].shape == (4, 1000)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    outcome = dtrak(*asked, "--cache", "third", "--out", "third.npz", "--seed", 1, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert not np.array_equal(first["values"], scores(tmp_path / "third.npz")["values"])


def test_several_methods_have_a_leading_axis(own_run: Path, finished_run: Path, tmp_path: Path) -> None:
    assert dtrak("attribute", own_run, "--method", "trak,step-trak", "--out", "both.npz", cwd=tmp_path).code == 0
    both = scores(tmp_path / "both.npz")
    assert both["methods"].tolist() == ["trak", "step-trak"]
    assert both["values"].shape == (2, 4, 1000)
    assert np.array_equal(both["values"][1], scores(finished_run / "scores.npz")["values"])
    assert not np.allclose(*both["values"])


def test_features_are_found_again_however_the_timesteps_are_written(own_run: Path) -> None:
    for written in (("1", " 1 ", "visible:1"), ("0,", " 0 ,")):
        found = []
        for timesteps in written:
            outcome = dtrak("attribute", own_run, "--timesteps", timesteps, cwd=own_run)
            assert outcome.code == 0, outcome.err
            found.append({*(own_run / "features").iterdir()})
        assert all(one == found[0] for one in found)


def test_a_single_picture_of_another_size_can_be_asked_about(own_run: Path, tmp_path: Path) -> None:
    Image.new("L", (30, 20), 99).save(tmp_path / "photo.png")
    assert dtrak("attribute", own_run, "--queries", "photo.png", "--out", "photo.npz", cwd=tmp_path).code == 0
    assert scores(tmp_path / "photo.npz")["values"].shape == (1, 1000)
    model = ("--model", own_run / "model", "--train", "digits:train", "--queries", "photo.png", "--size", 8)
    settings = ("--timesteps", 1, "--projection-dim", 64, "--parameters", "conv_out", "--out", "size.npz")
    assert dtrak("attribute", *model, *settings, cwd=tmp_path).code == 0
    assert np.array_equal(scores(tmp_path / "size.npz")["values"], scores(tmp_path / "photo.npz")["values"])


# interruption


def test_attribute_for_a_model_goes_on_where_it_was_killed_and_cleans_up(finished_run: Path, tmp_path: Path) -> None:
    asked = ["attribute", "--model", finished_run / "model", "--train", "digits:train", "--queries"]
    asked += [finished_run / "generated", "--out", "s.npz", "--timesteps", 1, "--projection-dim", 64]
    asked += ["--parameters", "conv_out"]
    with dtrak_started(*asked, cwd=tmp_path) as command:
        while command.runs and len(list(tmp_path.glob("s.npz.features/train-*/shard-*"))) < 3:
            time.sleep(0.005)
        command.signal(signal.SIGKILL)
        assert command.outcome().code == -signal.SIGKILL
    outcome = dtrak(*asked, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["s.npz"]
    assert np.array_equal(scores(tmp_path / "s.npz")["values"], scores(finished_run / "scores.npz")["values"])


def test_an_interrupt_is_one_line_and_130_and_the_same_command_goes_on(tmp_path: Path) -> None:
    """As `cifar2-small`, with colour images of 32×32 in an .npz file that are trained on at 16×16 and flipped."""
    random = np.random.default_rng(0)
    for name in ("train", "validation"):
        images = random.integers(0, 256, (64, 32, 32, 3), dtype=np.uint8)
        np.savez(tmp_path / f"cifar2-{name}.npz", images=images, labels=random.integers(0, 2, 64))
    printed = dtrak("recipes", "cifar2-small", cwd=tmp_path).out
    short = printed.replace("epochs: 60 ", "epochs: 2 ").replace("batch_size: 128", "batch_size: 16")
    (tmp_path / "short.yaml").write_text(short)
    with dtrak_started("train", "short.yaml", "--out", "run", cwd=tmp_path) as command:
        while command.runs and not (tmp_path / "run" / "checkpoints").exists():
            time.sleep(0.01)
        command.signal(signal.SIGINT)
        outcome = command.outcome()
    assert (outcome.code, outcome.error) == (130, "interrupted; the same command goes on where this one stopped")
    assert not (tmp_path / "run" / "model").exists()
    finished = dtrak("train", "short.yaml", "--out", "run", cwd=tmp_path)
    assert finished.code == 0, finished.err
    assert json.loads((tmp_path / "run" / "model" / "unet" / "config.json").read_text())["sample_size"] == 16


def test_sigterm_is_the_same_and_the_workers_of_a_pool_end_as_well(finished_run: Path, tmp_path: Path) -> None:
    model = ("--model", finished_run / "model", "--train", "digits:train", "--queries", finished_run / "generated")
    settings = ("--timesteps", 1, "--projection-dim", 64, "--parameters", "conv_out")
    asked = ("attribute", *model, *settings, "--out", "s.npz")
    with dtrak_started(*asked, "--engine", "pool", "--workers", 1, cwd=tmp_path) as command:
        while command.runs and len(list(tmp_path.glob("s.npz.features/*/shard-*"))) < 2:
            time.sleep(0.01)
        workers = children(command.process.pid or 0)
        assert workers
        command.signal(signal.SIGTERM)
        outcome = command.outcome()
    assert outcome.code == 130
    assert outcome.err.splitlines()[-1] == "dtrak: interrupted; the same command goes on where this one stopped"
    assert "Traceback" not in outcome.err
    ends = time.monotonic() + 60
    while any(Path(f"/proc/{pid}/cmdline").exists() for pid in workers):
        assert time.monotonic() < ends
        time.sleep(0.01)
    assert not list(tmp_path.rglob(".*.tmp"))
    assert not (tmp_path / "s.npz").exists()
    assert dtrak(*asked, cwd=tmp_path).code == 0
    assert np.array_equal(scores(tmp_path / "s.npz")["values"], scores(finished_run / "scores.npz")["values"])


# progress


def test_without_a_terminal_progress_is_a_few_plain_lines(recipe: MakeRecipe, tmp_path: Path) -> None:
    """And nothing but progress: no library adds a line, though they are imported as late as they are for a user."""
    path = recipe(data={"select": {"count": 100}}, training={"batch_size": 25})
    outcome = dtrak_fresh("run", path, "--out", "run", cwd=tmp_path)
    assert (outcome.code, outcome.out) == (0, "The report: run/report.html\n"), outcome.err
    lines = outcome.err.splitlines()
    assert lines[0].startswith("train: 8/8 steps, ")
    assert lines[1].startswith("generate: 4/4 pictures, ")
    assert len(lines) < 15
    assert all(line.isprintable() and line == line.rstrip() for line in lines)
    assert all(re.match(r"(train|generate|features)( of \S+)?: [\d,]+(/[\d,]+)? \w+", line) for line in lines), lines


def test_long_work_is_told_of_at_every_tenth_and_whenever_the_time_has_doubled(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("dtrak.progress.time.monotonic", lambda: now)
    with progress_bar("train", 1000, "steps") as advance:
        advance(200)  # done by an earlier run
        for _ in range(800):
            now += 9
            advance(1)
    told = capsys.readouterr().err.splitlines()
    assert [line.split("/")[0] for line in told[:5]] == [f"train: {200 + steps}" for steps in (1, 2, 4, 8, 16)]
    assert told[0] == "train: 201/1,000 steps, 0:00:09 elapsed, 1:59:51 to go"
    assert told[-1] == "train: 1,000/1,000 steps, 2:00:00 elapsed"
    assert len(told) == 15


def test_in_a_terminal_there_is_a_bar_with_an_estimate() -> None:
    code = """if True:
        from dtrak.progress import progress_bar
        with progress_bar("generate", 8, "pictures") as advance:
            for _ in range(9):
                advance(1 if _ else 0)
    """
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    with subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=os.environ | {"TERM": "xterm"}) as process:
        os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert process.returncode == 0, shown
    assert re.search(r"generate .*█.*8/8.*pictures.*elapsed,.*to go", shown)


@pytest.mark.slow
def test_the_demo_ends_with_a_report(tmp_path: Path) -> None:
    outcome = dtrak_fresh("demo", cwd=tmp_path)
    assert (outcome.code, outcome.out) == (0, "The report: runs/digits/report.html\n"), outcome.err
    assert (tmp_path / "runs" / "digits" / "report.html").stat().st_size > 100_000
