"""Choose the ticks of an axis, and write their values."""

from collections.abc import Sequence

from matplotlib.ticker import Locator, LogLocator, MaxNLocator

from dtrak.wording import plain

TICKS = 5  # on an axis, roughly
ROUND = MaxNLocator(TICKS, steps=[1, 2, 5, 10])
ROUNDING = 1e-9  # of a tick at the end of an axis


def nice_ticks(low: float, high: float) -> list[float]:
    """Return round numbers around low and high, 1, 2 or 5 times a power of ten apart; they span at least 1."""
    return list(map(float, ROUND.tick_values(low, max(high, low + 1))))


def x_tick_values(xs: Sequence[float], log: bool) -> Sequence[float]:
    """Return the values themselves if they are few; else powers of ten, or round numbers, between them."""
    if len(xs) <= TICKS + 2:
        return xs
    powers = _between(xs, LogLocator(numticks=TICKS + 2)) if log else []
    return powers if len(powers) > 1 else _between(xs, ROUND)


def _between(xs: Sequence[float], locator: Locator) -> list[float]:
    """Return the ticks from the first to the last of the values."""
    ticks = map(float, locator.tick_values(xs[0], xs[-1]))
    return [tick for tick in ticks if xs[0] * (1 - ROUNDING) <= tick <= xs[-1] * (1 + ROUNDING)]


def plain_value(value: float) -> str:
    """Write a value as 10, 4,096, 0.3 or 10⁻⁵."""
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    text = f"{value:g}" if abs(value) >= 1e-3 else plain(value)
    return text.replace("1.00×", "")
