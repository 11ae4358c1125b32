"""A table of results, for people (console, text, Markdown, LaTeX) and for other programs (CSV); what commands print.

In CSV files, a text that a spreadsheet would run as a formula gets a quote in front, which marks it as text. If it
begins with quotes already, it gets one more, so that removing one quote always gives back the original.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Literal

import rich.table
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.text import Text

from dtrak.errors import UsageError
from dtrak.files import is_stream, write_text
from dtrak.progress import say

FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")  # the first characters of a formula
# Characters that LaTeX reads as commands, that its usual font shows as others, or that it has in formulas only.
LATEX = str.maketrans(
    {character: f"\\{character}" for character in "{}$&#_%"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {character: f"{{{character}}}" for character in "[]*"}  # after \\ they would be read as its options
    | {character: f"${character}$" for character in "<>|"}
    | {character: f"$^{plain}$" for character, plain in zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789", strict=True)}
    | {"−": "$-$", "±": r"$\pm$", "×": r"$\times$", "÷": r"$\div$", "·": r"$\cdot$", "√": r"$\surd$"}
    | {"λ": r"$\lambda$", "η": r"$\eta$", "ℓ": r"$\ell$", "½": r"$\frac12$", "‖": r"$\Vert$", "≤": r"$\leq$"}
)
output = Console(highlight=False, soft_wrap=True, emoji=False)


@dataclass(frozen=True)
class Cell:
    """A number with its text for people: Cell(41.68, "41.7 ± 4.8"). A missing number is None."""

    value: float | None
    text: str


Entry = str | int | float | Cell


@dataclass(frozen=True)
class Table:
    """A table: each row has one entry for every head. Columns that hold only numbers are aligned to the right."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    caption: str = ""
    notes: Sequence[str] = ()  # below the table

    def __rich__(self) -> RenderableType:
        """Return the table for a console, as wide as the console, with the notes below it."""
        table = rich.table.Table(
            title=Text(self.caption) if self.caption else None, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True
        )
        for index, (head, is_right) in enumerate(zip(self.heads, self._right(), strict=True)):
            table.add_column(Text(head), justify="right" if is_right else "left", no_wrap=index == 0)
        for row in self._texts():
            table.add_row(*map(Text, row))
        return Group(table, *(Text(note, style="italic") for note in self.notes))

    def text(self) -> str:
        """Return the table as plain text, as wide as its entries; each note is one line."""
        file = io.StringIO()
        Console(file=file, width=10_000, color_system=None).print(self)
        return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())

    def csv(self) -> str:
        """Return heads and rows as CSV; numbers have all digits, and `original` reads the text."""
        rows = [self.heads, *([one.value if isinstance(one, Cell) else one for one in row] for row in self.rows)]
        cells = [[harmless(one) if isinstance(one, str) else one for one in row] for row in rows]
        file, texts = io.StringIO(), (one for row in cells for one in row if isinstance(one, str))
        csv.writer(file, lineterminator="\n", quoting=quoting(texts)).writerows(cells)
        return file.getvalue()

    def markdown(self) -> str:
        """Return the table in GitHub's Markdown, with the caption above it."""
        rule = ["---:" if is_right else "---" for is_right in self._right()]
        cells = [[text.replace("|", r"\|") for text in row] for row in (self.heads, rule, *self._texts())]
        table = "\n".join(f"| {' | '.join(row)} |" for row in cells)
        return "\n\n".join(part for part in (self.caption, table, *self.notes) if part) + "\n"

    def latex(self) -> str:
        r"""Return the table in LaTeX, for a document with \usepackage{booktabs}."""
        head, *rows = [" & ".join(map(_latex, row)) + r" \\" for row in (self.heads, *self._texts())]
        columns = "".join("r" if is_right else "l" for is_right in self._right())
        caption = [rf"\caption{{{_latex(self.caption)}}}"] if self.caption else []
        table = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule"]
        notes = [rf"\par\smallskip {_latex(note)}" for note in self.notes]
        lines = [r"\begin{table}", r"\centering", *caption, *table, r"\end{tabular}", *notes, r"\end{table}"]
        return "\n".join(lines) + "\n"

    def _texts(self) -> list[list[str]]:
        return [[_text(entry) for entry in row] for row in self.rows]

    def _right(self) -> list[bool]:
        """Tell for each column whether it holds only numbers."""
        return [not any(isinstance(row[column], str) for row in self.rows) for column in range(len(self.heads))]


def _text(entry: Entry) -> str:
    """Return an entry as text for people, on one line."""
    if isinstance(entry, Cell):
        return entry.text
    if isinstance(entry, str):
        return " ".join(entry.split())
    return f"{entry:,}" if isinstance(entry, Integral) else f"{entry:.4g}"


def _latex(text: str) -> str:
    """Return the LaTeX code of a text; two hyphens do not become a dash."""
    return re.sub("-(?=-)", "-{}", text.translate(LATEX))


def harmless(text: str) -> str:
    """Return what a CSV file holds for a text: =1+1 becomes '=1+1, and most texts stay unchanged."""
    return f"'{text}" if text.lstrip("'").startswith(FORMULAS) else text


def original(cell: str) -> str:
    """Return the text from which `harmless` made this cell."""
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(FORMULAS) else cell


def quoting(texts: Iterable[str]) -> Literal[0, 2]:
    """Return the csv module's option for quoting these texts: by default it does not quote a carriage return."""
    return csv.QUOTE_NONNUMERIC if any("\r" in text for text in texts) else csv.QUOTE_MINIMAL


FORMATS: dict[str, Callable[[Table], str]] = {
    ".csv": Table.csv,
    ".md": Table.markdown,
    ".tex": Table.latex,
    ".txt": Table.text,
}


def check_table_path(path: Path) -> None:
    """Refuse a path whose ending is not that of a known format."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"cannot write a table to {path}: its ending has to be one of {', '.join(FORMATS)}")


def write_table(table: Table, path: Path) -> None:
    """Write a table in the format of the path's ending."""
    check_table_path(path)
    write_text(path, FORMATS[path.suffix.lower()](table))


def show(table: Table) -> None:
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
    if is_stream(path):
        say(f"{what}: {path}")
    else:
        output.print(f"{what}: {path}", markup=False)
