"""The page of results: its words are written by hand, its tables come from the findings.

A table stands below a comment that names its sources and their caption,

    <!-- digits/noise, cifar2-16px/noise: Who shares noise, validation queries -->

and is what digits/noise.md and cifar2-16px/noise.md have under that caption, side by side.
"""

import re
from pathlib import Path

from dtrak.files import write_text

PLACE = re.compile(r"(?P<comment><!-- (?P<sources>[\w/, -]+): (?P<caption>.+) -->\n\n)(?:(?:\|.*\n)+\n?)?")
MISSING = "–"

Rows = list[list[str]]


def refresh(page: Path, folder: Path) -> None:
    """Fill the tables of a page from the findings in a folder."""
    write_text(page, filled(page.read_text(encoding="utf-8"), folder))


def filled(text: str, folder: Path) -> str:
    """A page with its tables as the findings have them now."""

    def fill(place: re.Match[str]) -> str:
        sources = place["sources"].split(", ")
        tables = {one: rows(folder / f"{one}.md", place["caption"]) for one in sources}
        return f"{place['comment']}{_markdown(joined(tables))}\n"

    return PLACE.sub(fill, text)


def rows(path: Path, caption: str) -> Rows:
    """The rows of a table, its heads and its rule first."""
    _, found, rest = path.read_text(encoding="utf-8").partition(f"## {caption}\n\n")
    if not found:
        raise ValueError(f"{path} has no table “{caption}”")
    table = rest.partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def joined(tables: dict[str, Rows]) -> Rows:
    """The rows of the first table with the columns of all; of several benchmarks, heads say which."""
    benchmarks = {source: source.partition("/")[0] for source in tables}
    named = len(set(benchmarks.values())) > 1
    first = next(iter(tables.values()))
    result = [row[:1] for row in first]
    for source, (heads, rule, *body) in tables.items():
        cells = {row[0]: row[1:] for row in body}
        result[0] += [f"{benchmarks[source]}: {head}" if named else head for head in heads[1:]]
        result[1] += rule[1:]
        for row in result[2:]:
            row += cells.get(row[0], [MISSING] * len(heads[1:]))
    return result


def _markdown(rows: Rows) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
