"""The command line: `dtrak …`."""

from dtrak.cli.main import main

__all__ = ["main"]
