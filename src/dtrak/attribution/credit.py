"""Tables of credit: each group's share of the positive scores, for all pictures together and for each picture."""

from collections.abc import Sequence

from dtrak.attribution.matches import Credit
from dtrak.attribution.scores import Scores
from dtrak.errors import UsageError
from dtrak.tables import Cell, Entry, Table

ALL, NOBODY = "all pictures", "(none)"


def parse_groups(text: str) -> tuple[str, list[str]]:
    """Divide `artist` or `artist=Claude,Vincent` into the column and the groups that are asked for; [] means all."""
    column, equals, names = text.partition("=")
    chosen = [name.strip() for name in names.split(",")]
    if not column or (equals and not all(chosen)):
        raise UsageError(f"by {text!r}: give a column such as artist, or some of its values: artist=Claude,Vincent")
    return column, chosen if equals else []


def credit_tables(scores: Scores, by: str, only: Sequence[str] = (), top: int | None = None) -> tuple[Table, Table]:
    """Return the credit for all pictures together, and the same with that of each picture, for a file.

    `only` some groups of the column `by` are in the tables, and the `top` largest of them; all if not given.
    """
    sizes = dict(zip(*_sizes(scores, by), strict=True))
    for name in only:
        if name not in sizes:
            known = sorted(sizes)
            more = f" and {len(known) - 12:,} more" if len(known) > 12 else ""
            raise UsageError(f"no training image has {by} {name!r}: there are {', '.join(known[:12])}{more}")

    def rows(of: Scores, picture: str) -> list[list[Entry]]:
        found = [one for one in of.credit(by) if not only or str(one.group) in only]
        return [[picture, *_entries(one, sizes)] for one in found[:top]]

    count = len(scores.query_ids)
    heads = [by, "images", "share", "low", "high"]
    together = rows(scores, ALL)
    apart = [row for query in range(count) for row in rows(scores.of_queries([query]), str(scores.query_ids[query]))]
    what = f"over {count:,} pictures" if count > 1 else "if each group had shown other images of its own"
    notes = [
        f"Shares of the positive scores of {scores.method}; low and high: 95 % interval {what}. If a picture was "
        "scored with a prompt, its credit follows the prompt as well as what it shows."
    ]
    if count == 1:
        return Table(heads, [row[1:] for row in apart], notes=notes), Table(["picture", *heads], apart, notes=notes)
    return (
        Table(heads, [row[1:] for row in together], notes=notes),
        Table(["picture", *heads], [*together, *apart], notes=notes),
    )


def _sizes(scores: Scores, by: str) -> tuple[list[str], list[int]]:
    """Return the groups as text, and the number of training images in each."""
    names, _ = scores.shares(by)
    return [str(name) for name in names.tolist()], scores.sizes(by).tolist()


def _entries(credit: Credit, sizes: dict[str, int]) -> list[Entry]:
    numbers = (credit.share, credit.low, credit.high)
    group = str(credit.group)
    return [group or NOBODY, sizes[group], *(Cell(value, f"{100 * value:.1f}%") for value in numbers)]
