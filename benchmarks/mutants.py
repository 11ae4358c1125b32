"""Do the tests notice a wrong formula? Forty faults are planted in a copy of the tree, one by one, and tests are run.

    python benchmarks/mutants.py [--tree FOLDER] [--only TEXT] [--out build/mutants.json]

`mutants.yaml` lists the faults. One dies if a test of its room fails; without a fault, all of them have to pass.
Outcomes are kept in a file, so that a call that was killed goes on where it stopped; a fault is tried again if its
entry has changed.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

LONGEST = 1800  # seconds; who takes longer hangs, and that is noticed as well
FOLDERS = ("src", "tests", "benchmarks", "docs")  # which tests read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).parent.parent
    parser.add_argument("--tree", type=Path, default=here, help="the folder that holds src and tests")
    parser.add_argument("--only", default="", help="plant only faults whose room or words have this text")
    parser.add_argument("--out", type=Path, default=here / "build" / "mutants.json", help="where outcomes are kept")
    arguments = parser.parse_args()
    rooms = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    faults = [
        {"room": room, "tests": content["tests"], **fault}
        for room, content in rooms.items()
        for fault in content["faults"]
        if arguments.only in f"{room}: {fault['breaks']}"
    ]
    for one in faults:
        path = arguments.tree / "src" / "dtrak" / one["file"]
        if not path.exists() or path.read_text().count(one["old"]) != 1:
            sys.exit(f"{one['file']} does not have {one['old']!r} exactly once: where is it that {one['breaks']}?")
    used = {one["room"]: one["tests"] for one in faults}
    nothing = [
        {"room": room, "tests": tests, "breaks": f"nothing ({room})", "file": "__init__.py", "old": "", "new": ""}
        for room, tests in used.items()
    ]
    outcomes: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="mutants-") as temporary:
        copy = Path(temporary)
        for entry in arguments.tree.iterdir():
            if entry.name in FOLDERS:
                shutil.copytree(entry, copy / entry.name, ignore=shutil.ignore_patterns("__pycache__"))
            elif entry.is_file() and entry.name != ".git":
                shutil.copy(entry, copy)
        for one in nothing + faults:
            if outcomes.get(one["breaks"], {}).get("fault") != one:
                found = tried(copy, one)
                if not one["old"] and found["outcome"] == "died":
                    sys.exit(f"without a fault, the tests of {one['room']} do not pass: {found['by']}")
                outcomes[one["breaks"]] = {"fault": one, **found}
                arguments.out.write_text(json.dumps(outcomes, indent=1, ensure_ascii=False) + "\n")
            found = outcomes[one["breaks"]]
            said = f"{found['outcome']:8} {found['seconds']:5.0f} s  {one['room']}: {one['breaks']}  {found['by']}"
            print(said, flush=True)
    died = sum(outcomes[one["breaks"]]["outcome"] == "died" for one in faults)
    print(f"{died} of {len(faults)} died")


def tried(tree: Path, fault: dict[str, Any]) -> dict[str, Any]:
    """Plant a fault, run the tests of its room until one fails, and take the fault out again."""
    path = tree / "src" / "dtrak" / fault["file"]
    right = path.read_text()
    tests = [one for one in fault["tests"] if (tree / one).exists()]
    command = [sys.executable, "-m", "pytest", "-x", "-n0", "-q", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    started = time.monotonic()
    path.write_text(right.replace(fault["old"], fault["new"]))
    try:
        with (tree / "output.txt").open("w+") as output:
            run = subprocess.Popen(
                command, cwd=tree, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            try:
                code: int | None = run.wait(LONGEST)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(run.pid, signal.SIGKILL)  # with the processes that tests have left
            output.seek(0)
            lines = output.read().splitlines()
    finally:
        path.write_text(right)
    if code not in (0, 1, 2, None):
        sys.exit("\n".join([f"pytest ended with {code}:", *lines[-20:]]))
    failed = next((line for line in lines if line.startswith(("FAILED", "ERROR"))), "it hangs" if code is None else "")
    outcome = "survived" if code == 0 else "died"
    return {"outcome": outcome, "by": failed[:200], "seconds": round(time.monotonic() - started, 1)}


if __name__ == "__main__":
    main()
