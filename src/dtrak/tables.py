"""A table of results, for people (text, Markdown, LaTeX) and for other programs (CSV)."""

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

import rich.table
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.text import Text

from dtrak.errors import UsageError
from dtrak.files import write_text
from dtrak.spreadsheets import harmless, quoting

# Characters that LaTeX reads as commands, that its usual font shows as others, or that it has in formulas only.
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        **{character: f"\\{character}" for character in "{}$&#_%"},
        **{character: f"{{{character}}}" for character in "[]*"},  # after \\ they would be read as its options
        **{character: f"${character}$" for character in "<>|"},
        **{character: f"$^{digit}$" for digit, character in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
        **{character: f"$_{digit}$" for digit, character in enumerate("₀₁₂₃₄₅₆₇₈₉")},
        "⁻": "$^-$",
        "−": "$-$",
        "‖": r"$\Vert$",
        "½": r"$\frac12$",
        "·": r"$\cdot$",
        "×": r"$\times$",
        "÷": r"$\div$",
        "±": r"$\pm$",
        "≤": r"$\leq$",
        "≥": r"$\geq$",
        "≠": r"$\neq$",
        "≈": r"$\approx$",
        "ℓ": r"$\ell$",
        "∈": r"$\in$",
        "∞": r"$\infty$",
        "√": r"$\surd$",
        "→": r"$\rightarrow$",
        "←": r"$\leftarrow$",
        "α": r"$\alpha$",
        "β": r"$\beta$",
        "γ": r"$\gamma$",
        "δ": r"$\delta$",
        "ε": r"$\varepsilon$",
        "η": r"$\eta$",
        "θ": r"$\theta$",
        "λ": r"$\lambda$",
        "μ": r"$\mu$",
        "ρ": r"$\rho$",
        "σ": r"$\sigma$",
        "τ": r"$\tau$",
        "φ": r"$\varphi$",
        "Δ": r"$\Delta$",
        "Σ": r"$\Sigma$",
        "Φ": r"$\Phi$",
    }
)


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
            table.add_row(*(Text(text) for text in row))
        return Group(table, *(Text(note, style="italic") for note in self.notes))

    def text(self) -> str:
        """Return the table as plain text, as wide as its entries; each note is one line."""
        file = io.StringIO()
        Console(file=file, width=10_000, color_system=None).print(self)
        return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())

    def csv(self) -> str:
        """Return heads and rows as CSV; numbers have all digits, and `spreadsheets.original` reads the text."""
        rows = [self.heads, *([one.value if isinstance(one, Cell) else one for one in row] for row in self.rows)]
        cells = [[harmless(one) if isinstance(one, str) else one for one in row] for row in rows]
        file = io.StringIO()
        how = quoting(one for row in cells for one in row if isinstance(one, str))
        csv.writer(file, lineterminator="\n", quoting=how).writerows(cells)  # type: ignore[arg-type]
        return file.getvalue()

    def markdown(self) -> str:
        """Return the table in GitHub's Markdown, with the caption above it."""
        rule = ["---:" if is_right else "---" for is_right in self._right()]
        cells = [[text.replace("|", r"\|") for text in row] for row in (self.heads, rule, *self._texts())]
        table = "\n".join(f"| {' | '.join(row)} |" for row in cells)
        return "\n\n".join(part for part in (self.caption, table, *self.notes) if part) + "\n"

    def latex(self) -> str:
        r"""Return the table in LaTeX, for a document with \usepackage{booktabs}."""
        import pandas

        frame = pandas.DataFrame([map(_latex, row) for row in self._texts()], columns=list(map(_latex, self.heads)))
        columns = "".join("r" if is_right else "l" for is_right in self._right())
        table: str = frame.style.hide(axis="index").to_latex(
            environment="table",
            position_float="centering",
            column_format=columns,
            hrules=True,
            caption=_latex(self.caption) or None,
        )
        notes = "".join(rf"\par\smallskip {_latex(note)}" + "\n" for note in self.notes)
        return table.replace(r"\end{table}", notes + r"\end{table}")

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
