"""Print a table of cells, whose first row has the heads, on the terminal or as Markdown."""

from rich.console import Console
from rich.table import Table

LEFT = ("", "note")  # columns of text


def times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"


def show(title: str, cells: list[list[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for name in cells[0]:
        table.add_column(name, justify="left" if name in LEFT else "right")
    for row in cells[1:]:
        table.add_row(*row)
    Console().print(table)


def markdown(title: str, cells: list[list[str]]) -> str:
    align = [":--" if name in LEFT else "--:" for name in cells[0]]
    return "\n".join([f"## {title}", "", *(f"| {' | '.join(row)} |" for row in (cells[0], align, *cells[1:]))])
