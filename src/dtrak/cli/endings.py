"""Turn an error that ends a command into one line on standard error and an exit code."""

import sys

import typer

from dtrak.errors import DtrakError

INTERRUPTED = 130  # the usual exit code after Ctrl-C


def ended_by(error: BaseException) -> int:
    """Print one line on what has ended a command, and return the exit code."""
    code, message = explained(error)
    print(f"dtrak: {printable(' '.join(message.split()))}", file=sys.stderr)
    return code


def printable(line: str) -> str:
    """Escape characters that control a terminal or that it cannot show, as \\x1b and so on."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in line)


def explained(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the one-line message for an error."""
    match error:
        case DtrakError():
            return error.exit_code, str(error)
        case typer.TyperException():
            return error.exit_code, f"{error.format_message().rstrip('.')} (--help tells more)"
        case OSError(filename=str(name), strerror=str(reason)):
            return 1, f"cannot use {name}: {reason}"
        case KeyboardInterrupt():
            return INTERRUPTED, "interrupted; the same command goes on where this one stopped"
        case _:
            return 1, f"{type(error).__name__}: {error} (--debug shows where)"
