"""Print the results of commands on standard output."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dtrak.progress import console

if TYPE_CHECKING:
    from dtrak.tables import Table

output = Console(highlight=False, soft_wrap=True, emoji=False)


def show(table: "Table") -> None:
    """Print a table, as wide as the terminal; without a terminal, as wide as its entries."""
    if output.is_terminal:
        output.print(table)
    else:
        output.print(table.text(), markup=False, end="")


def show_yaml(text: str) -> None:
    """Print YAML text unchanged, in colour on a terminal."""
    if output.is_terminal:
        from rich.syntax import Syntax  # slow to load

        output.print(Syntax(text, "yaml", theme="ansi_dark", background_color="default", word_wrap=True))
    else:
        output.print(text, markup=False, end="")


def tell(what: str, path: Path) -> None:
    """Print what a command has made, and where; on standard error if it went into a stream, maybe standard output."""
    from dtrak.files import is_stream

    where = console if is_stream(path) else output
    where.print(f"{what}: {path}", markup=False, soft_wrap=True)
