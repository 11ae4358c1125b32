"""Figures for papers and notebooks: each function returns a figure, which a notebook shows and `save` writes."""

from dtrak.figures.charts import boxplots, credit, lds_bars, lds_curve
from dtrak.figures.picture_sheets import proponents_and_opponents, self_influence, side_by_side
from dtrak.figures.style import PaperFigure, save_figure

__all__ = [
    "PaperFigure",
    "boxplots",
    "credit",
    "lds_bars",
    "lds_curve",
    "proponents_and_opponents",
    "save_figure",
    "self_influence",
    "side_by_side",
]
