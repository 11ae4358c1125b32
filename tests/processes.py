"""What the system knows about running processes."""

from pathlib import Path


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid:
            found.append(int(status.parent.name))
    return found
