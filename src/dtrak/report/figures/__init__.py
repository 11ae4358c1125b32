"""Figures for papers and notebooks: each function returns a `matplotlib.figure.Figure`, which `save_figure` writes."""

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
