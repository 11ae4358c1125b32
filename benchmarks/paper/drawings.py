"""Figures of a study: LDS against a setting, and against cost with the frontier of what nothing beats."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from study import Measured

from dtrak.figures import lds_curve
from dtrak.report.curves import Curve, Sample

LEAST = 0.5  # seconds: what is faster is drawn here
COLOURS = {"trak": "#b1511f", "d-trak": "#1c6a86", "mixed-trak": "#4f7a28", "step-trak": "#7a3e9d"}
OTHERS = "#63645f"


@dataclass(frozen=True)
class Drawing:
    name: str
    figure: Figure | Path  # or the file where one lies


def curve(axis: str, lines: Mapping[str, Mapping[float, Measured]]) -> Figure:
    """LDS with its error against a setting."""
    samples = {
        name: [Sample(x, one.mean, one.std) for x, one in sorted(points.items())] for name, points in lines.items()
    }
    return lds_curve(Curve(title="", axis=axis, lines=samples, note="", log=False, ceiling=None))


def damping_curve(found: Mapping[str, Measured]) -> Figure:
    """LDS against λ; the open mark is the best."""
    lines = {
        name: [Sample(x, lds, chosen=x == one.damping) for x, lds in sorted(one.curve)] for name, one in found.items()
    }
    return lds_curve(Curve(title="", axis="λ ÷ mean eigenvalue", lines=lines, note="", log=True, ceiling=None))


@dataclass(frozen=True)
class Choice:
    """A method with its settings, what it predicts and what it costs."""

    method: str
    settings: str
    lds: Measured
    seconds: float
    has_own_noise: bool = False

    @property
    def name(self) -> str:
        return f"{self.method}, {self.settings}" if self.settings else self.method

    @property
    def place(self) -> tuple[float, float]:
        return max(self.seconds, LEAST), self.lds.mean


def frontier(choices: list[Choice]) -> list[Choice]:
    """Those that are better than everything cheaper, the cheapest first."""
    found: list[Choice] = []
    for one in sorted(choices, key=lambda one: (one.seconds, -one.lds.mean)):
        if not found or one.lds.mean > found[-1].lds.mean:
            found.append(one)
    return found


def cost_figure(choices: list[Choice], default: str) -> Figure:
    """Crosses are choices with own noise; names are those of large steps of the frontier and of the default."""
    figure = Figure(figsize=(8, 5.4), layout="constrained")
    axes = figure.subplots()
    for one in choices:
        colour, mark = COLOURS.get(one.method, OTHERS), "x" if one.has_own_noise else "o"
        axes.errorbar(*one.place, one.lds.std, fmt=mark, color=colour, capsize=2, markersize=4.5, lw=0.8)
    for name, colour in {**COLOURS, "other methods": OTHERS}.items():
        axes.plot([], [], "o", color=colour, label=name)
    axes.plot([], [], "x", color="black", label="own noise for each image")
    best = frontier(choices)
    x, y = zip(*(one.place for one in best), strict=True)
    axes.step(x, y, where="post", color="#888", lw=1, label="frontier: nothing cheaper is better")
    named = 0.0  # the LDS of the last choice that has its name beside it
    for one in best:
        if one.lds.mean > named + 3 * one.lds.std and one.name != default:
            axes.annotate(one.name, one.place, (-5, 5), textcoords="offset points", fontsize=8, ha="right")
            named = one.lds.mean
    for one in choices:
        if one.name == default:
            axes.annotate(f"the default: {one.name}", one.place, (0, 9), textcoords="offset points", fontsize=8)
    axes.set(xscale="log", xlabel="seconds of one core for the features", ylabel="LDS, %", xlim=(LEAST / 4, None))
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
