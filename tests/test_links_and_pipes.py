"""A link is written through to its target, a device or a pipe is written into, and none of them is ever replaced."""

import io
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from commands import Outcome, dtrak
from dtrak.attribution.scores import Scores
from dtrak.errors import DtrakError
from dtrak.files import check_writable, replace_folder, whole_folder, write_bytes, write_json, write_text


def attribute(run: Path, out: object, cwd: Path) -> Outcome:
    return dtrak("attribute", run, "--method", "random", "--out", out, cwd=cwd)


def values_of(path: Path | io.BytesIO) -> np.ndarray:
    with np.load(path) as file:
        return np.asarray(file["values"])


def test_scores_are_written_through_a_link_whether_its_target_is_there_or_not(own_run: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link, target = tmp_path / "s.npz", tmp_path / "disk" / "real.npz"
    link.symlink_to("disk/real.npz")
    for _ in range(2):  # at first it leads nowhere
        assert attribute(own_run, "s.npz", tmp_path).code == 0
        assert link.is_symlink()
        assert values_of(target).shape == (4, 1000)
        target.write_bytes(b"old")
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["real.npz"]


REFUSED = {
    "loop": "cannot write loop: it is a link that leads back to itself",
    "away": "cannot write away: it is a link to {place}/gone/s.npz, whose folder does not exist",
    "folder": "cannot write folder: it is a folder",
    "protected": "cannot write protected: it is write-protected",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_written_through_is_refused_before_the_work(name: str, own_run: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    (place / "real").mkdir(parents=True)
    (place / "loop").symlink_to("pool")
    (place / "pool").symlink_to("loop")
    (place / "away").symlink_to("gone/s.npz")
    (place / "folder").symlink_to("real")
    (place / "protected").write_text("mine")
    (place / "protected").chmod(0o444)
    if name == "protected" and os.access(place / name, os.W_OK):
        pytest.skip("root may write everywhere")
    before = sorted(os.listdir(place))
    outcome = attribute(own_run, name, place)
    assert (outcome.code, outcome.error) == (1, REFUSED[name].format(place=place))
    assert sorted(os.listdir(place)) == before


def test_a_device_stays_one_and_leaves_nothing_beside_it(finished_run: Path, own_run: Path, tmp_path: Path) -> None:
    (tmp_path / "null").symlink_to("/dev/null")
    for name in ("/dev/null", "null"):
        assert attribute(own_run, name, tmp_path).code == 0
    model = ("--model", finished_run / "model", "--train", "digits:train", "--queries", "digits:validation")
    outcome = dtrak("attribute", *model, "--method", "random", "--out", "/dev/null", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert not Path("/dev/null.features").exists()
    assert not list(Path("/dev").glob(".null*"))
    assert (tmp_path / "null").is_symlink()


def test_a_pipe_gets_the_scores_and_stays_one(own_run: Path, tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    outcome = attribute(own_run, "pipe", tmp_path)
    reader.join()
    assert outcome.code == 0, outcome.err
    assert values_of(io.BytesIO(got[0])).shape == (4, 1000)
    assert pipe.is_fifo()
    assert sorted(os.listdir(tmp_path)) == ["pipe", "run"]


def test_standard_output_that_is_a_pipe_is_written_into_and_gets_nothing_else(tmp_path: Path) -> None:
    script = "from pathlib import Path; from dtrak.files import write_text; from dtrak.tables import tell; "
    script += "write_text(Path('/dev/stdout'), 'scores'); tell('The scores', Path('/dev/stdout'))"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("scores", "The scores: /dev/stdout\n")
    assert os.listdir(tmp_path) == []


def test_a_run_whose_files_are_links_keeps_them(own_run: Path, tmp_path: Path) -> None:
    """Such as one whose large parts lie on another disk."""
    elsewhere = tmp_path / "disk"
    elsewhere.mkdir()
    names = ("scores.npz", "report.html", "generated")
    for name in names:
        (own_run / name).rename(elsewhere / name)
        (own_run / name).symlink_to(elsewhere / name)
    assert dtrak("generate", own_run, "--count", 2, cwd=tmp_path).code == 0
    for command in (("attribute", "--method", "random"), ("report",)):
        outcome = dtrak(*command, own_run, cwd=tmp_path)
        assert outcome.code == 0, outcome.err
    assert all((own_run / name).is_symlink() for name in names)
    assert {path.name for path in (elsewhere / "generated").glob("*.png")} == {"seed-00000.png", "seed-00001.png"}
    assert Scores.load(elsewhere / "scores.npz").values.shape == (2, 1000)
    assert sorted(os.listdir(elsewhere)) == sorted(names)


# the functions behind them


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_bytes(path, b"new"),
        lambda path: write_text(path, "new"),
        lambda path: write_json(path, "new"),
        lambda path: write_text(path, "new", once=True),
    ],
)
def test_every_writer_goes_through_links(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "link").symlink_to("target")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert "new" in (tmp_path / "target").read_text()
    assert sorted(os.listdir(tmp_path)) == ["link", "target"]


def test_a_folder_takes_the_place_of_what_a_link_leads_to_and_of_no_file(tmp_path: Path) -> None:
    (tmp_path / "disk" / "real").mkdir(parents=True)
    (tmp_path / "disk" / "real" / "old").touch()
    (tmp_path / "link").symlink_to("disk/real")
    with whole_folder(tmp_path / "link") as new:
        (new / "file").touch()
    assert (tmp_path / "link").is_symlink()
    assert os.listdir(tmp_path / "disk" / "real") == ["file"]
    (tmp_path / "file").write_text("mine")
    for replace in (
        lambda: whole_folder(tmp_path / "file").__enter__(),
        lambda: replace_folder(tmp_path / "disk", tmp_path / "file"),
    ):
        with pytest.raises(DtrakError, match="file: it is not a folder"):
            replace()
    assert (tmp_path / "file").read_text() == "mine"


def test_what_is_written_again_stays_as_private_as_it_was(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "old")
    (tmp_path / "file").chmod(0o600)
    write_text(tmp_path / "file", "new")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_checking_a_pipe_waits_for_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    check_writable(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
