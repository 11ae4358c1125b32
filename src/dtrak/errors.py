"""The two kinds of errors, each printed as one clear line.

A `UsageError` is a mistake that the user can correct (exit code 2). Any other `DtrakError` is work that failed (exit
code 1).
"""


class DtrakError(Exception):
    """The work failed: a disk is full, a model gives NaN, a file is damaged."""

    exit_code = 1


class UsageError(DtrakError):
    """The user gave something that does not exist or does not fit; the message names it and says what would fit."""

    exit_code = 2


def check_known(kind: str, name: str, known: "list[str] | tuple[str, ...] | dict[str, object]") -> None:
    """Refuse a `name` that is not among the `known` ones; the error lists them all."""
    if name not in known:
        raise UsageError(f"unknown {kind} {name!r}: choose from {', '.join(known)}")
