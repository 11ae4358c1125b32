"""What commands leave after they were killed at random moments and run again, beside what they leave undisturbed.

    python benchmarks/faults.py                                  # 100 kills, half an hour at the most
    python benchmarks/faults.py --kills 20 --commands train,report --seed 1

A tiny model goes through every command that works for long. Each trial starts with what the command before has left,
kills the command once or up to four times in a row, lets it run to its end, and compares every file with that of a run
that was never killed. A kill hits the whole process group, at a moment that is uniform over the time that the command
takes. Most are SIGKILL; SIGTERM has to end a command with status 130 and one line. Some commands are started from
nothing, and killed while Python still imports; the others are forked from a process that has done so. Linux only.

Left out of the comparison is what says how long something took: the fields `seconds` and `…_seconds` of JSON files, the
array `seconds` in counterfactual/jobs/*.npz, what *.seconds hold, and cost.json in features.
"""

import argparse
import itertools
import multiprocessing
import os
import random
import re
import shlex
import shutil
import sys
import time
import zipfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import date
from multiprocessing.context import ForkProcess
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from tempfile import TemporaryDirectory

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

from dtrak import cli
from dtrak.files import TEMPORARY
from dtrak.runs.run import versions
from dtrak.tables import Table

INTERRUPTED = "interrupted; the same command goes on where this one stopped"
AT_A_TIME, PATIENCE = 2, 300  # commands; seconds that each may take
IN_IMPORTS, SIGTERMS, SEVERAL = 0.05, 0.25, 0.25  # shares: two of the kills; of the trials, those with 2 to 4 kills
SECONDS = re.compile(rb'("\w*seconds\w*": )[^,\s]+')
RECIPE = Path(__file__).with_suffix(".yaml")
COMMANDS = {
    "train": "train tiny.yaml --out run --subset ids.txt",
    "generate": "generate run",
    "attribute": "attribute run --method trak,d-trak",
    "attribute --out": "attribute --model run/model --train digits:validation --queries run/generated --method d-trak "
    "--timesteps 2 --projection-dim 64 --out scores.npz",
    "evaluate lds": "evaluate lds run --method trak,d-trak --damping spectrum --keep-models --engine process",
    "evaluate counterfactual": "evaluate counterfactual run --method trak --count 3 --encoder efficientnet-lite0 "
    "--engine process",
    "report": "report run",
}
forked = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Kill:
    number: Signals
    moment: float  # seconds after the start
    in_imports: bool


@dataclass(frozen=True)
class Trial:
    name: str  # of the command
    folder: Path  # in which before/ and after/ have what it finds and what it leaves
    ends: float  # nothing is begun after that
    kills: tuple[Kill, ...] = ()


@dataclass
class Found:
    name: str
    kills: list[Kill] = field(default_factory=list)  # those that came before the command had ended
    seconds: float = 0.0  # that the last run took
    wrong_ends: list[str] = field(default_factory=list)  # after SIGTERM
    differences: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)

    def faults(self) -> list[str]:
        every = [*self.wrong_ends, *self.differences, *(f"{one} is left over" for one in self.leftovers)]
        return [f"{self.name}, after {len(self.kills)} kills: {one}" for one in every]


def main() -> None:
    given, began = parse(), time.monotonic()
    import dtrak.cli.run_commands  # noqa: F401  # commands are forked from here, with all of it imported

    importing = time.monotonic() - began
    with TemporaryDirectory() as folder, ProcessPoolExecutor(AT_A_TIME, forked) as pool:
        undisturbed(Path(folder), list(COMMANDS)[: 1 + list(COMMANDS).index(given.commands[-1])])
        trials = [Trial(name, Path(folder, name), began + 60 * given.minutes) for name in given.commands]
        found = list(pool.map(tried, trials))  # undisturbed as well, in as much company as those that will be killed
        seconds = {one.name: one.seconds for one in found}
        chance, turn = random.Random(given.seed), itertools.cycle(trials)
        while (left := given.kills - sum(len(one.kills) for one in found)) and time.monotonic() < trials[0].ends:
            todo = []
            while left > 0:
                kills = planned(chance, seconds[(trial := next(turn)).name], importing)[:left]
                todo.append(replace(trial, kills=kills))
                left -= len(kills)
            found += pool.map(tried, todo)
    print(f"`{shlex.join(['python', 'benchmarks/faults.py', *sys.argv[1:]])}`")
    packages = ", ".join(map(" ".join, versions().items()))
    minutes = (time.monotonic() - began) / 60
    print(f"{date.today()}, {given.kills - left} of {given.kills} kills in {minutes:.0f} minutes, {packages}\n")
    print(table(given.commands, [one for one in found if one.kills]).markdown())
    sys.exit("\n".join(fault for one in found for fault in one.faults()) or None)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--minutes", type=float, default=30, help="begin nothing after so many (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments (default: 0)")
    parser.add_argument("--commands", default=",".join(COMMANDS), help="some of: %(default)s")
    given = parser.parse_args()
    given.commands = [name for name in COMMANDS if name in given.commands.split(",")]
    return given if given.commands else parser.error("no such command")


def undisturbed(folder: Path, names: list[str]) -> None:
    """Run commands one after the other, and keep what there was before and after each."""
    (state := folder / "begin").mkdir()
    shutil.copy(RECIPE, state / "tiny.yaml")
    (state / "ids.txt").write_text("".join(f"{one}\n" for one in range(0, 1000, 5)))
    for name in names:
        shutil.copytree(state, folder / name / "before")
        state = Path(shutil.copytree(state, folder / name / "after"))
        code, said = ended(started(name, state), state)
        assert code == 0, f"`dtrak {COMMANDS[name]}` fails: {said}"


def planned(chance: random.Random, seconds: float, importing: float) -> tuple[Kill, ...]:
    """When to kill a command that takes so many seconds; SIGTERM is not caught during imports."""
    kills = []
    for _ in range(chance.randint(2, 4) if chance.random() < SEVERAL else 1):
        in_imports, is_gentle, share = chance.random() < IN_IMPORTS, chance.random() < SIGTERMS, chance.random()
        number = SIGTERM if is_gentle and not in_imports else SIGKILL
        kills.append(Kill(number, share * (importing if in_imports else seconds), in_imports))
    return tuple(kills)


def tried(trial: Trial) -> Found:
    """Kill a command as the trial says, let it run to its end, and compare what it leaves."""
    found, began = Found(trial.name), time.monotonic()
    with TemporaryDirectory(dir=trial.folder) as folder:
        place = Path(shutil.copytree(trial.folder / "before", Path(folder, "place")))
        for kill in trial.kills if began < trial.ends else ():
            process = started(trial.name, place, kill.in_imports)
            if was_sent(kill, process):
                found.kills.append(kill)
                code, said = ended(process, place)
                is_one_line = re.findall(r"^dtrak: .*|^Traceback", said, re.M) == [f"dtrak: {INTERRUPTED}"]
                if kill.number == SIGTERM and (code != 130 or not is_one_line):
                    found.wrong_ends.append(f"SIGTERM ended it with status {code}, and it said {said!r}")
        if trial.kills and not found.kills:  # it was quicker this time, or there is no time left
            return found
        began = time.monotonic()
        code, said = ended(started(trial.name, place), place)
        found.seconds = time.monotonic() - began
        if code != 0:
            found.differences.append(f"run again, it ended with status {code}, and said {said!r}")
        expected, there = content(trial.folder / "after"), content(place)
        found.leftovers = [name for name in there if TEMPORARY.fullmatch(Path(name).name)]
        names = sorted((expected.keys() | there.keys()) - set(found.leftovers))
        found.differences += [f"{name} differs" for name in names if expected.get(name) != there.get(name)]
    return found


def started(name: str, place: Path, from_nothing: bool = False) -> ForkProcess:
    """A command under way."""
    place.with_suffix(".txt").write_text("")
    process = forked.Process(target=become, args=(shlex.split(COMMANDS[name]), place, from_nothing))
    process.start()
    return process


def ended(process: ForkProcess, place: Path) -> tuple[int | None, str]:
    """The status of a command and what it said; the status is None if it did not end."""
    process.join(PATIENCE)
    code = process.exitcode
    process.kill()
    process.join()
    return code, place.with_suffix(".txt").read_text()


def become(arguments: list[str], place: Path, from_nothing: bool) -> None:
    for descriptor, path in ((1, os.devnull), (2, place.with_suffix(".txt"))):
        os.dup2(os.open(path, os.O_WRONLY), descriptor)
    os.chdir(place)
    os.setpgid(0, 0)
    if from_nothing:
        os.execv(sys.executable, [sys.executable, "-m", "dtrak", *arguments])
    sys.argv = ["dtrak", *arguments]
    cli.main()


def was_sent(kill: Kill, process: ForkProcess) -> bool:
    """Kill a command with its group at the moment, by SIGTERM once that is caught; False if it has ended before."""
    begun = time.monotonic()
    while process.exitcode is None and (pid := process.pid):
        caught = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
        listens = kill.number == SIGKILL or int(caught[0], 16) >> (kill.number - 1) & 1
        if time.monotonic() - begun >= kill.moment and os.getpgid(pid) == pid and listens:
            os.killpg(pid, kill.number)
            return True
        time.sleep(0.002)
    return False


def content(folder: Path) -> dict[str, bytes]:
    """What every file holds and where every folder is, without what says how long something took."""
    return {str(path.relative_to(folder)): lasting(path) for path in folder.rglob("*") if path.name != "cost.json"}


def lasting(path: Path) -> bytes:
    if path.is_dir() or path.suffix == ".seconds":
        return b""
    if path.parent.name == "jobs" and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as arrays:
            return b"".join(arrays.read(name) for name in arrays.namelist() if name != "seconds.npy")
    return SECONDS.sub(rb"\1", path.read_bytes()) if path.suffix == ".json" else path.read_bytes()


def table(names: list[str], found: list[Found]) -> Table:
    """A row for each command, and one for all of them."""
    heads = ["command", "kills", "SIGKILL", "SIGTERM", "one line", "trials", "identical", "different", "leftovers"]
    rows: list[list[str | int]] = []
    for name in [*names, "all"]:
        trials = [one for one in found if name in (one.name, "all")]
        kills = [kill for one in trials for kill in one.kills]
        gentle = sum(kill.number == SIGTERM for kill in kills)
        as_said = gentle - sum(len(one.wrong_ends) for one in trials)
        different = sum(bool(one.differences) for one in trials)
        counts = [len(kills), len(kills) - gentle, gentle, as_said, len(trials), len(trials) - different, different]
        rows.append([name, *counts, sum(len(one.leftovers) for one in trials)])
    several, early = sum(len(one.kills) > 1 for one in found), sum(kill.in_imports for kill in kills)
    note = f"{several} of the trials killed a command several times in a row; {early} of the kills came during imports."
    return Table(heads, rows, notes=[note])


if __name__ == "__main__":
    main()
