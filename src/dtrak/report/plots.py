"""Compute the positions of a curve's points, ticks and error bars in a drawing of WIDTH × HEIGHT units."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.ticker import Locator, LogLocator, MaxNLocator

from dtrak.report.curves import Curve, Sample
from dtrak.report.wording import plain

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 14, 46  # margins
TICKS = 5  # on an axis, roughly
ROUND = MaxNLocator(TICKS, steps=[1, 2, 5, 10])
ROUNDING = 1e-9  # of a tick at the end of an axis


@dataclass(frozen=True)
class Axis:
    """Maps values between `low` and `high` to positions between `start` and `end`, linearly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        """Return the position of a value."""
        low, high, at = (math.log(one) if self.log else one for one in (self.low, self.high, value))
        return round(self.start + (self.end - self.start) * ((at - low) / (high - low) if high > low else 0.5), 1)


@dataclass(frozen=True)
class Tick:
    """A mark on an axis."""

    place: float
    text: str


@dataclass(frozen=True)
class Point:
    """The position of a sample, and of the ends of its error bar."""

    x: float
    y: float
    low: float | None
    high: float | None
    sample: Sample


@dataclass(frozen=True)
class Plot:
    """A curve with all positions that a template needs to draw it."""

    curve: Curve
    lines: dict[str, list[Point]]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    ceiling: float | None
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    bottom: int = HEIGHT - BOTTOM

    @property
    def values(self) -> list[float]:
        """Return every x of the curve, for the table below the drawing."""
        return sorted({point.sample.x for points in self.lines.values() for point in points})

    def at(self, method: str, x: float) -> Sample | None:
        """Return a method's sample at x, if it has one."""
        return next((point.sample for point in self.lines[method] if point.sample.x == x), None)


def plot(curve: Curve) -> Plot:
    """Lay out a curve."""
    samples = [sample for line in curve.lines.values() for sample in line]
    xs = [sample.x for sample in samples]
    reach = [sample.lds + sign * (sample.std or 0) for sample in samples for sign in (-1, 1)]
    reach += [] if curve.ceiling is None else [curve.ceiling]
    y_values = nice_ticks(min(reach), max(reach))
    inset = 16  # keeps the marks away from the edge
    x = Axis(min(xs), max(xs), LEFT + inset, WIDTH - RIGHT - inset, curve.log)
    y = Axis(y_values[0], y_values[-1], HEIGHT - BOTTOM, TOP)

    def point(sample: Sample) -> Point:
        ends = [None if sample.std is None else y.place(sample.lds + sign * sample.std) for sign in (-1, 1)]
        return Point(x.place(sample.x), y.place(sample.lds), ends[0], ends[1], sample)

    return Plot(
        curve,
        {method: [point(sample) for sample in line] for method, line in curve.lines.items()},
        [Tick(x.place(value), plain_value(value)) for value in x_tick_values(sorted(set(xs)), curve.log)],
        [Tick(y.place(value), f"{value:g}".replace("-", "−")) for value in y_values],
        None if curve.ceiling is None else y.place(curve.ceiling),
    )


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
