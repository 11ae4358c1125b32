"""Run what was typed. An error becomes one line, and the exit code is 2 for what the user typed, else 1."""

import difflib
import io
import logging
import os
import signal
import sys
import traceback
import warnings

from cyclopts import CycloptsError, MissingArgumentError, UnknownCommandError, UnknownOptionError, UnusedCliTokensError

from dtrak.cli.commands import COMMANDS, EVALUATIONS, app
from dtrak.errors import DtrakError


def main() -> None:
    """Run a command. With --debug, which may stand anywhere, an error shows its traceback as well."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    if not debug:
        silence_libraries()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the name of a file may not be valid text
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends a command as Ctrl-C does
    try:
        app(arguments, print_error=False, exit_on_error=False)
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            traceback.print_exc()
        code, message = explained(error)
        line = "".join(
            one if one.isprintable() else one.encode("unicode_escape").decode() for one in " ".join(message.split())
        )
        print(f"dtrak: {line}", file=sys.stderr)
        sys.exit(code)


def silence_libraries() -> None:
    """Turn off the warnings and logs of libraries: they are for developers, and users get dtrak's error messages."""
    warnings.simplefilter("ignore")
    logging.disable()
    if not sys.stderr.isatty():
        for library in ("HF_HUB", "HF_DATASETS"):
            os.environ.setdefault(f"{library}_DISABLE_PROGRESS_BARS", "1")


def explained(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the one-line message for an error."""
    match error:
        case DtrakError():
            return error.exit_code, str(error)
        case CycloptsError():
            return 2, f"{mistyped(error).rstrip('.')} (--help tells more)"
        case OSError(filename=str(name), strerror=str(reason)):
            return 1, f"cannot use {name}: {reason}"
        case KeyboardInterrupt():
            return 130, "interrupted; the same command goes on where this one stopped"
        case _:
            return 1, f"{type(error).__name__}: {error} (--debug shows where)"


def mistyped(error: CycloptsError) -> str:
    """Say what cannot be read of what was typed, and what may have been meant."""
    match error:
        case UnknownCommandError(unused_tokens=[name, *_]):
            near = difflib.get_close_matches(name, [*COMMANDS, "evaluate", *EVALUATIONS], 1)
            return f"No such command '{name}'" + "".join(f". Did you mean {one}?" for one in near)
        case UnknownOptionError():
            return f"No such option: {str(error).removeprefix('Unknown option: ')}"
        case MissingArgumentError(argument=argument, keyword=None) if argument is not None:
            kind = "option" if argument.name.startswith("-") else "argument"
            return f"Missing {kind} '{argument.name}'.{str(error).partition('argument.')[2]}"
        case UnusedCliTokensError(unused_tokens=[first, *_]):
            return f"There is an argument too many: '{first}'"
        case _:
            return str(error)
