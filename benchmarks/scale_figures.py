"""The table and the figure of `scale.py`: how time and memory grow with the number of images."""

from pathlib import Path

import matplotlib
import numpy as np
from rich.console import Console
from rich.table import Table

from dtrak.figures.style import MARKS, STRONG, STYLE, WIDTH, PaperFigure, simplify_frame

STEPS = {"fit": "fit", "rule": "λ by rule", "question": "one question", "build": "index"}
Result = dict[str, float]


def show(results: list[Result]) -> None:
    """Print a table, and for each k the exponent of N that fits best."""
    table = Table("N", "k", *(f"{step} s" for step in STEPS), "search ms", "slowest", "recall", "index MB", "most MB")
    for one in results:
        row = [one["N"], one["k"], *(one[f"{step} s"] for step in STEPS), one["search ms"], one["slowest ms"]]
        table.add_row(*(f"{value:,}" for value in (*row, one["recall"], one["index MB"], most_memory(one))))
    Console(width=140).print(table)
    for dim in sorted({one["k"] for one in results}):
        same = [one for one in results if one["k"] == dim]
        if len(same) > 1:
            said = ", ".join(f"{step} {exponent(same, f'{step} s'):.2f}" for step in STEPS)
            print(f"k = {dim}, exponents of N: {said}, search {exponent(same, 'search ms'):.2f}")
    for one in results:
        both = one["fit s"] + one["question s"]
        others = [name.removesuffix(" agrees") for name in one if name.endswith(" agrees")]
        for name in others:
            seconds, memory = one[f"{name} s"], one[f"{name} MB"]
            print(
                f"N = {one['N']:,}, k = {one['k']:,}: {name} takes {seconds / both:.2f} × the time of fit and question "
                f"and {seconds / one['question s']:.1f} × that of another question, with {memory:,.0f} MB; its scores "
                f"have a correlation of {one[f'{name} agrees']} with those of dtrak"
            )


def most_memory(one: Result) -> float:
    """Return the peak of memory of all steps of ours, in MB."""
    return max(one[f"{step} MB"] for step in (*STEPS, "search"))


def exponent(results: list[Result], name: str) -> float:
    """Return the exponent of N that fits best."""
    sizes = np.log([one["N"] for one in results])
    return float(np.polyfit(sizes, np.log([one[name] for one in results]), 1)[0])


def draw(results: list[Result], path: Path, dim: int = 1024) -> None:
    """Draw time and memory against N."""
    same = sorted((one for one in results if one["k"] == dim), key=lambda one: one["N"])
    sizes = [one["N"] for one in same]
    with matplotlib.rc_context(STYLE):
        figure = PaperFigure(figsize=(WIDTH, 2.6), layout="constrained")
        times, memory = figure.subplots(1, 2)
        for (step, title), colour, mark in zip(STEPS.items(), STRONG, MARKS, strict=False):
            growth = f"{title} (N to the {exponent(same, f'{step} s'):.2f})"
            times.plot(sizes, [one[f"{step} s"] for one in same], mark, ls="-", color=colour, ms=4, lw=1, label=growth)
            memory.plot(sizes, [one[f"{step} MB"] / 1000 for one in same], mark, ls="-", color=colour, ms=4, lw=1)
        seconds = [one["search ms"] / 1000 for one in same]
        times.plot(sizes, seconds, MARKS[4], ls="-", color=STRONG[4], ms=4, lw=1, label="search in the index")
        memory.plot(sizes, [one["search MB"] / 1000 for one in same], MARKS[4], ls="-", color=STRONG[4], ms=4, lw=1)
        times.set(xscale="log", yscale="log", xlabel="training images", ylabel="seconds")
        memory.set(xscale="log", ylim=(0, 4), xlabel="training images", ylabel="peak of memory, GB")
        for axes in (times, memory):
            simplify_frame(axes, "y")
            axes.set_xticks(sizes, [f"{int(size):,}" for size in sizes])
            axes.minorticks_off()
        times.legend(frameon=False, fontsize=6, loc="center right", bbox_to_anchor=(1.0, 0.36))
        figure.save(path)
