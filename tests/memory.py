"""How much memory a new process takes for some lines of Python."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
from pathlib import Path
import dtrak.images.images, datasets

def memory(kind):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind)) * 1024 / 1e6

before = memory("{kind}")
{lines}
print(memory("{kind}") - before)
"""


def megabytes(lines: str, *words: str | Path, kind: str = "VmHWM") -> float:
    """The most memory that the lines take at a time, beyond what is imported. `sys.argv` has the words.

    With kind RssAnon, the memory that they have taken at their end, without files that are mapped.
    """
    command = [sys.executable, "-c", SCRIPT.format(lines=lines, kind=kind), *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])
