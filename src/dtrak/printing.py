"""What commands have made, on standard output."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from dtrak.evaluation.tables import Table

output = Console(highlight=False, soft_wrap=True, emoji=False)


def show(table: "Table") -> None:
    """A table as wide as the terminal, or as it is by itself where there is none."""
    if output.is_terminal:
        output.print(table)
    else:
        output.print(table.text(), markup=False, end="")


def tell(what: str, path: Path) -> None:
    """What a command has made, and where."""
    output.print(f"{what}: {path}", markup=False)
