"""The two kinds of errors, each printed as one clear line.

A `UsageError` is a mistake that the user can correct (exit code 2). Any other `DtrakError` is work that failed (exit
code 1).
"""

from collections.abc import Callable
from inspect import signature


class DtrakError(Exception):
    """The work failed: a disk is full, a model gives NaN, a file is damaged."""

    exit_code = 1


class UsageError(DtrakError):
    """The user gave something that does not exist or does not fit; the message names it and says what would fit."""

    exit_code = 2


def check_type(name: str, value: object, kinds: type | tuple[type, ...], would_do: str) -> None:
    """Refuse a value of another type; the error names the argument and says what would do."""
    if not isinstance(value, kinds):
        raise UsageError(f"{name} is a {type(value).__name__}: give {would_do}")


def check_takes(name: str, function: Callable[..., object], takes: tuple[str, ...]) -> None:
    """Refuse a function that cannot be called with so many arguments; the error names them."""
    try:
        signature(function).bind(*takes)
    except TypeError:
        said = getattr(function, "__name__", repr(function))
        raise UsageError(f"{name}: the function {said} must take ({', '.join(takes)})") from None
    except ValueError:  # a function whose signature nobody knows
        return


def check_known(kind: str, name: str, known: "list[str] | tuple[str, ...] | dict[str, object]") -> None:
    """Refuse a `name` that is not among the `known` ones; the error lists them all."""
    if name not in known:
        raise UsageError(f"unknown {kind} {name!r}: choose from {', '.join(known)}")
