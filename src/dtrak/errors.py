"""The two ways in which a command can end badly, each one clear line.

A `UsageError` is the user's to mend (exit code 2); any other `DtrakError` is work that failed (exit code 1).
"""


class DtrakError(Exception):
    """The work failed: a disk is full, a model gives NaN, a file is damaged."""

    exit_code = 1


class UsageError(DtrakError):
    """What was asked for does not exist or does not fit; the message names it and what would be right."""

    exit_code = 2


def choose(kind: str, name: str, known: "list[str] | tuple[str, ...] | dict[str, object]") -> None:
    """Refuse a `name` that is not among the `known` ones, naming them all."""
    if name not in known:
        raise UsageError(f"unknown {kind} {name!r}: choose from {', '.join(known)}")
