"""The command line: `dtrak …`."""

from dtrak.cli.commands import main

__all__ = ["main"]
