"""Write text into CSV files so that no spreadsheet runs it as a formula, and so that it can be read back unchanged.

A quote in front of such a text marks it as text. If it begins with quotes already, it gets one more, so that removing
one quote always gives back the original.
"""

import csv
from collections.abc import Iterable

FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")  # the first characters of a formula


def harmless(text: str) -> str:
    """Return what a CSV file holds for a text: =1+1 becomes '=1+1, and most texts stay unchanged."""
    return f"'{text}" if text.lstrip("'").startswith(FORMULAS) else text


def original(cell: str) -> str:
    """Return the text from which `harmless` made this cell."""
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(FORMULAS) else cell


def quoting(texts: Iterable[str]) -> int:
    """Return the csv module's option for quoting these texts: by default it does not quote a carriage return."""
    return csv.QUOTE_NONNUMERIC if any("\r" in text for text in texts) else csv.QUOTE_MINIMAL
