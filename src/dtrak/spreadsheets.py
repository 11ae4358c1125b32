"""Text that a spreadsheet would run as a formula is made harmless in CSV files, and can be read back as it was.

A quote in front of such a text says that it is text. A text that begins with quotes already gets one more, so that
taking one away always gives back what there was.
"""

import csv
from collections.abc import Iterable

FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")  # what they begin with


def harmless(text: str) -> str:
    """What a CSV file holds for a text: =1+1 becomes '=1+1, and most texts stay as they are."""
    return f"'{text}" if text.lstrip("'").startswith(FORMULAS) else text


def original(cell: str) -> str:
    """The text of which `harmless` made this cell."""
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(FORMULAS) else cell


def quoting(texts: Iterable[str]) -> int:
    """How the csv module quotes a table with these texts: it takes a carriage return for no reason to."""
    return csv.QUOTE_NONNUMERIC if any("\r" in text for text in texts) else csv.QUOTE_MINIMAL
