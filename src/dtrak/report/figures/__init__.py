"""Figures for a paper or a notebook: each function gives a `matplotlib.figure.Figure`, and `save_figure` writes it."""

from dtrak.report.figures.charts import boxplots, credit, lds_bars, lds_curve
from dtrak.report.figures.pictures import proponents_and_opponents, self_influence, side_by_side
from dtrak.report.figures.style import save_figure

__all__ = [
    "boxplots",
    "credit",
    "lds_bars",
    "lds_curve",
    "proponents_and_opponents",
    "save_figure",
    "self_influence",
    "side_by_side",
]
