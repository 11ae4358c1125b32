"""Compute the positions of a curve's points, ticks and error bars in a drawing of WIDTH × HEIGHT units."""

import math
from dataclasses import dataclass

from dtrak.figures.style import nice_ticks, plain_value, x_tick_values
from dtrak.report.curves import Curve, Sample

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 14, 46  # margins


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
