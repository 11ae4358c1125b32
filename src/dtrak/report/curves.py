"""The section on curves: how the LDS changes with one setting, from comparisons that differ only in that setting."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dtrak.figures.style import nice_ticks, plain_value, x_tick_values
from dtrak.methods import METHODS, Gradients
from dtrak.report.measured import Measurement

# The settings that a curve can be over, with the curve's title and the label of its axis.
CURVE_SETTINGS = {
    "timesteps": ("K", "K, timesteps averaged over"),
    "projection_dim": ("k", "k, dimensions of the projection"),
    "draws": ("noises", "noises at each timestep"),
    "ensemble_size": ("S", "S, models of the ensemble"),
    "checkpoint_count": ("checkpoints", "checkpoints averaged over"),
    "objective": ("η", "η, from the training loss (½) to L_Square (1)"),
}
ETA = {"None": 1.0, "square": 1.0, "simple": 0.5}  # the η of objectives that are not written as interpolated(η)
MAX_CURVES = 12  # on a page
# The words for settings that all points of a curve share.
SHARED = {
    "timesteps": "K\u00a0=\u00a0{}",
    "projection_dim": "k\u00a0=\u00a0{}",
    "objective": "objective {}",
    "queries": "{} pictures",
    "damping": "damping {}",
}
WIDTH, HEIGHT = 480, 300  # of a drawing
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 14, 46  # its margins
INSET = 16  # keeps the marks away from the edge


@dataclass(frozen=True)
class Sample:
    """One point of a curve."""

    x: float
    lds: float
    std: float | None = None
    chosen: bool = False  # whether the method's reported LDS has this damping


@dataclass(frozen=True)
class Curve:
    """The LDS of several methods over one setting."""

    title: str  # the text after "LDS against"
    axis: str
    lines: dict[str, list[Sample]]  # by method, with rising x
    note: str
    log: bool  # whether the axis is logarithmic
    ceiling: float | None


def damping_curve(measured: Sequence[Measurement]) -> Curve | None:
    """Return LDS against λ, from the first measurement that has tried several λ."""
    for one in measured:
        lines = {
            method: [Sample(x, lds, chosen=x == found.damping) for x, lds in sorted(found.curve)]
            for method, found in one.methods.items()
            if found.curve
        }
        if lines:
            subsets = "the subsets that it was chosen on" if "other" in one.note else "the reported subsets"
            note = f"On {subsets}; the open mark is the chosen λ. {_shared_settings(one.settings, 'damping')}"
            return Curve("damping λ", "λ ÷ mean eigenvalue", lines, note, True, None)
    return None


def setting_curves(measured: Sequence[Measurement]) -> list[Curve]:
    """Return LDS against every setting that has several values while all others are equal."""
    curves = []
    for setting, (title, axis) in CURVE_SETTINGS.items():
        groups: dict[tuple[str, str], dict[float, Measurement]] = {}  # by the kind of values, and all other settings
        for one in measured:
            kind, x = _numeric(setting, one.settings.get(setting))
            if x is not None:
                rest = {name: str(value) for name, value in one.settings.items() if name != setting}
                others = json.dumps([rest, one.queries, one.subsets], sort_keys=True)
                groups.setdefault((kind, others), {}).setdefault(x, one)
        for (kind, _), of_group in groups.items():
            lines: dict[str, list[Sample]] = {}
            for x, one in sorted(of_group.items()):
                for method, result in one.methods.items():
                    if _matters(setting, method):
                        lines.setdefault(method, []).append(Sample(x, result.lds, result.std))
            lines = {method: samples for method, samples in lines.items() if len(samples) > 1}
            if lines:
                last = next(reversed(of_group.values()))
                xs = [sample.x for samples in lines.values() for sample in samples]
                log = min(xs) > 0 and max(xs) / min(xs) >= 4
                of_kind, note = f"{axis}, {kind}" if kind else axis, _shared_settings(last.settings, setting)
                curves.append(Curve(title, of_kind, lines, note, log, last.ceiling))
    return curves[:MAX_CURVES]


def _numeric(setting: str, value: Any) -> tuple[str, float | None]:
    """Return the kind of a setting's value and the value as a number; different kinds make different curves."""
    text = str(value)
    if setting == "objective":
        interpolated = re.fullmatch(r"interpolated\((.+)\)", text)
        return "", float(interpolated[1]) if interpolated else ETA.get(text)
    kind, _, digits = text.rpartition(":")  # as in cumulative:10
    return kind, float(digits) if digits.isdigit() else None


def _matters(setting: str, method: str) -> bool:
    """Tell whether the setting can change the method's scores."""
    needs = METHODS[method].needs if method in METHODS else None
    if not isinstance(needs, Gradients):
        return False
    match setting:
        case "objective":
            return needs.any_objective
        case "ensemble_size":
            return needs.models == "retrained"
        case "checkpoint_count":
            return needs.models == "checkpoints"
        case _:
            return True


def _shared_settings(settings: Mapping[str, Any], but: str) -> str:
    """Describe the settings that all points of a curve share, all `but` one: K = 10, k = 4096, …"""
    found = {name: settings.get(name) for name in SHARED if name != but}
    known = [SHARED[name].format(value) for name, value in found.items() if value is not None]
    return ", ".join(known) + "." * bool(known)


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
    """A curve with the positions of everything that a template draws of it."""

    curve: Curve
    lines: dict[str, list[Point]]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    ceiling: float | None
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    bottom: int = HEIGHT - BOTTOM

    @property
    def values(self) -> list[float]:
        """Every x of the curve, for the table below the drawing."""
        return sorted({point.sample.x for points in self.lines.values() for point in points})

    def at(self, method: str, x: float) -> Sample | None:
        """Return a method's sample at x, if it has one."""
        return next((point.sample for point in self.lines[method] if point.sample.x == x), None)


def plot(curve: Curve) -> Plot:
    """Lay out a curve."""
    samples = [sample for line in curve.lines.values() for sample in line]
    xs = sorted({sample.x for sample in samples})
    reach = [sample.lds + sign * (sample.std or 0) for sample in samples for sign in (-1, 1)]
    reach += [] if curve.ceiling is None else [curve.ceiling]
    y_values = nice_ticks(min(reach), max(reach))

    def place(value: float, within: Sequence[float], start: float, end: float, log: bool = False) -> float:
        low, high, at = (math.log(one) if log else one for one in (within[0], within[-1], value))
        return round(start + (end - start) * ((at - low) / (high - low) if high > low else 0.5), 1)

    def x(value: float) -> float:
        return place(value, xs, LEFT + INSET, WIDTH - RIGHT - INSET, curve.log)

    def y(value: float) -> float:
        return place(value, y_values, HEIGHT - BOTTOM, TOP)

    def point(one: Sample) -> Point:
        low, high = (None if one.std is None else y(one.lds + sign * one.std) for sign in (-1, 1))
        return Point(x(one.x), y(one.lds), low, high, one)

    return Plot(
        curve,
        {method: [point(sample) for sample in line] for method, line in curve.lines.items()},
        [(x(value), plain_value(value)) for value in x_tick_values(xs, curve.log)],
        [(y(value), f"{value:g}".replace("-", "−")) for value in y_values],
        None if curve.ceiling is None else y(curve.ceiling),
    )
