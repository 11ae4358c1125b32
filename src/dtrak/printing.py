"""What commands have made, on standard output."""

from pathlib import Path

from rich.console import Console

output = Console(highlight=False, soft_wrap=True, emoji=False)


def tell(what: str, path: Path) -> None:
    """What a command has made, and where."""
    output.print(f"{what}: {path}", markup=False)
