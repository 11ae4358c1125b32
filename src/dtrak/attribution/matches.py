"""What scores are asked for: training images with their scores, and the shares of groups of them."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Match:
    """A training image with its score for a query.

    >>> import dtrak
    >>> strongest = dtrak.open_run("runs/digits").scores().top(1)[0][0]
    >>> strongest.score > 0, strongest.columns
    (True, {'label': 9})
    """

    id: Any
    score: float
    position: int  # its index in the training set
    columns: dict[str, Any]


@dataclass(frozen=True)
class Credit:
    """A group's share of the positive influence, with its 95% interval.

    >>> import dtrak
    >>> largest = dtrak.open_run("runs/digits").scores().credit(by="label")[0]
    >>> largest.low < largest.share < largest.high
    True
    """

    group: Any
    share: float
    low: float
    high: float
