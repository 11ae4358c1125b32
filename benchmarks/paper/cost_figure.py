"""LDS against the seconds that scores take, every choice a point, with the frontier of those that nothing beats."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from study import LDS

LEAST = 0.1  # seconds: what is faster is drawn here


def frontier(points: Mapping[str, LDS]) -> list[str]:
    """The choices that are better than everything cheaper, the cheapest first."""
    best, found = float("-inf"), []
    for name, one in sorted(points.items(), key=lambda item: item[1].seconds):
        if one.mean > best:
            best = one.mean
            found.append(name)
    return found


def cost_figure(points: Mapping[str, LDS]) -> Figure:
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, one in points.items():
        colour = "#1c6a86" if name.startswith("d-trak") else "#b1511f" if name.startswith("trak") else "#63645f"
        axes.errorbar(max(one.seconds, LEAST), one.mean, one.std, fmt="o", color=colour, capsize=2, markersize=4)
    best = frontier(points)
    axes.plot(
        [max(points[name].seconds, LEAST) for name in best], [points[name].mean for name in best], color="#888", lw=1
    )
    for name in best:
        place = (max(points[name].seconds, LEAST), points[name].mean)
        axes.annotate(name, place, xytext=(5, 5), textcoords="offset points", fontsize=8)
    axes.set(xscale="log", xlabel="seconds to score, features included", ylabel="LDS, %")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
