"""Figures of numbers: the LDS of methods, LDS curves, credit by group, and boxplots of counterfactual distances."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from dtrak.figures.style import (
    COLUMN,
    FAINT,
    FOR,
    INK,
    MARKS,
    PALE,
    STRONG,
    STYLE,
    WIDTH,
    PaperFigure,
    plain_value,
    simplify_frame,
    x_tick_values,
)

if TYPE_CHECKING:
    from dtrak.attribution.credit import Credit
    from dtrak.report.curves import Curve
    from dtrak.report.measured import MethodLDS

ROW = 0.3  # inches, the height of the row of a method or a group


def lds_bars(
    methods: Mapping[str, "MethodLDS"], ceiling: float | None = None, perfect: float | None = None
) -> PaperFigure:
    """Draw the LDS of each method with the 95% interval of its bootstrap.

    What perfect scores would reach is marked if it is known, or else the noise ceiling.

    >>> from dtrak import figures
    >>> from dtrak.report.measured import MethodLDS
    >>> found = {"step-trak": MethodLDS(55.5, 0.9, 53.7, 57.2, None, [])}
    >>> figures.lds_bars(found, perfect=79).save("lds.pdf")
    """
    values = {name: (one.lds, one.low, one.high) for name, one in methods.items()}
    texts = [f"{one.lds:.1f} ± {one.std:.1f}".replace("-", "−") for one in methods.values()]
    with matplotlib.rc_context(STYLE):
        figure, axes = _bars(values, texts, ROW, INK, ecolor=INK, elinewidth=1.0, capsize=2)
        limit, name = (ceiling, "noise ceiling") if perfect is None else (perfect, "perfect scores")
        if limit is not None:
            axes.axvline(limit, color=FAINT, linestyle=(0, (4, 3)), linewidth=1)
            axes.text(limit, 1.01, name, transform=axes.get_xaxis_transform(), ha="center", color=FAINT)
        axes.axvline(0, color=INK, linewidth=0.6)
        axes.set_xlabel("LDS (%)")
    return figure


def lds_curve(curve: "Curve") -> PaperFigure:
    """Draw the LDS of each method against a setting, as wide as a column of text.

    >>> from dtrak import figures
    >>> from dtrak.report.curves import Curve, Sample
    >>> line = [Sample(2, 36.3), Sample(5, 39.7), Sample(10, 40.7)]
    >>> figures.lds_curve(Curve("timesteps", "K", {"d-trak": line}, "", True, None)).save("curve.pdf")
    """
    xs = sorted({sample.x for line in curve.lines.values() for sample in line})
    with matplotlib.rc_context(STYLE):
        figure = PaperFigure(figsize=(COLUMN, 2.4), layout="constrained")
        axes = figure.subplots()
        for index, (method, line) in enumerate(curve.lines.items()):
            colour, mark = STRONG[index % len(STRONG)], MARKS[index % len(MARKS)]
            x, y = [sample.x for sample in line], [sample.lds for sample in line]
            errors = [sample.std or 0.0 for sample in line] if any(sample.std for sample in line) else None
            axes.errorbar(x, y, errors, color=colour, marker=mark, markersize=4, linewidth=1.2, capsize=2, label=method)
            for sample in (one for one in line if one.chosen):
                axes.plot(sample.x, sample.lds, mark, markersize=5, mec=colour, mfc="white", mew=1.4, zorder=4)
        if curve.ceiling is not None:
            axes.axhline(curve.ceiling, color=FAINT, linestyle=(0, (4, 3)), linewidth=1, label="noise ceiling")
        axes.set_xscale("log" if curve.log else "linear")
        ticks = x_tick_values(xs, curve.log)
        axes.set_xticks(ticks, [plain_value(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel(curve.axis)
        axes.set_ylabel("LDS (%)")
        simplify_frame(axes, "y")
        axes.spines["bottom"].set_visible(True)
        axes.tick_params(axis="x", length=3, width=0.6)
        figure.legend(loc="outside upper left", ncols=2, frameon=False, handlelength=1.8)
    return figure


def credit(
    credits: Sequence["Credit"], of_training: Mapping[Any, float] | None = None, groups: int = 12
) -> PaperFigure:
    """Draw the shares of the largest groups with their 95% intervals, from `Scores.credit`.

    `of_training` gives the groups' shares of the training images, which are marked for comparison.

    >>> import dtrak
    >>> from dtrak import figures
    >>> scores = dtrak.Scores.load("runs/digits/scores.npz")
    >>> figures.credit(scores.credit(by="label")).save("credit.pdf")
    """
    shown = list(credits[:groups])
    values = {str(one.group): (100 * one.share, 100 * one.low, 100 * one.high) for one in shown}
    texts = [f"{share:.1f}%" for share, _, _ in values.values()]
    with matplotlib.rc_context(STYLE):
        figure, axes = _bars(values, texts, 0.75 * ROW, "none", ecolor=FOR, elinewidth=1.6)
        for row, one in enumerate(shown):
            if of_training is not None and one.group in of_training:
                at = 100 * of_training[one.group]
                axes.plot([at, at], [row - 0.38, row + 0.38], color=INK, linewidth=1.4)
        axes.set_xlim(left=0)
        axes.set_xlabel("share of the positive scores (%)")
    return figure


def _bars(
    values: Mapping[str, tuple[float, float, float]],
    texts: Sequence[str],
    height: float,
    edge: str,
    **of_interval: Any,
) -> tuple[PaperFigure, Axes]:
    """Draw a bar for each name, the first on top, with its interval (value, low, high) and a text beside it."""
    figure = PaperFigure(figsize=(WIDTH, 0.65 + height * len(values)), layout="constrained")
    axes = figure.subplots()
    rows, (lengths, low, high) = np.arange(len(values)), np.array(list(values.values())).T
    axes.barh(rows, lengths, 0.6, color=PALE[0], edgecolor=edge, linewidth=0.6)
    axes.errorbar(lengths, rows, xerr=np.array([lengths - low, high - lengths]).clip(min=0), fmt="none", **of_interval)
    for row, text in enumerate(texts):
        axes.text(1.02, row, text, transform=axes.get_yaxis_transform(), va="center", ha="left")
    axes.set_yticks(rows, list(values))
    axes.set_ylim(len(values) - 0.5, -0.5)
    simplify_frame(axes, "x")
    return figure, axes


def boxplots(panels: Mapping[str, Mapping[str, NDArray[np.floating[Any]]]]) -> PaperFigure:
    """Draw a panel for each label, with a box for each name, its values [Q] as points, and their median as a number.

    Boxes reach from quartile to quartile, and whiskers to the farthest value within 1.5 lengths of the box from it.

    >>> import numpy as np
    >>> from dtrak import figures
    >>> distances = {"random": np.array([1.0, 1.2, 0.9]), "step-trak": np.array([2.0, 2.5, 1.7])}
    >>> figures.boxplots({"distance": distances}).save("boxes.pdf")
    """
    names, line = list(next(iter(panels.values()))), {"color": INK, "linewidth": 0.7}
    with matplotlib.rc_context(STYLE):
        figure = PaperFigure(figsize=(WIDTH, 0.75 + 0.3 * len(names)), layout="constrained")
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (label, by_name) in zip(grid, panels.items(), strict=True):
            values = [np.asarray(by_name[name], dtype=np.float64) for name in names]
            drawn = axes.boxplot(
                values,
                positions=range(len(values)),
                orientation="horizontal",
                widths=0.6,
                patch_artist=True,
                showfliers=False,
                manage_ticks=False,
                boxprops={"edgecolor": INK, "linewidth": 0.7},
                whiskerprops=line,
                capprops=line,
                medianprops={"color": INK, "linewidth": 1.4},
            )
            for index, (box, of_box) in enumerate(zip(drawn["boxes"], values, strict=True)):
                box.set_facecolor(PALE[index % len(PALE)])
                # Multiples of the golden ratio spread neighbouring points, in the same way every time.
                heights = index + 0.4 * (np.arange(len(of_box)) * 0.618034 % 1 - 0.5)
                axes.scatter(of_box, heights, s=4, color=FAINT, alpha=0.6, linewidths=0, zorder=3)
                median = f"{np.median(of_box):.3g}"
                axes.text(1.02, index, median, transform=axes.get_yaxis_transform(), va="center", ha="left")
            axes.text(1.02, 1.02, "median", transform=axes.transAxes, va="bottom", ha="left", color=FAINT, fontsize=7)
            axes.set_xlabel(label)
            simplify_frame(axes, "x")
        grid[0].set_yticks(range(len(names)), names)
        grid[0].set_ylim(len(names) - 0.5, -0.5)  # the first name on top
    return figure
