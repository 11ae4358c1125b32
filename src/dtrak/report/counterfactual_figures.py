"""The figures of a counterfactual evaluation: boxplots of distances to the originals, and the pictures."""

from pathlib import Path

from dtrak.evaluation.counterfactual import Counterfactual
from dtrak.features.trajectories import SEED
from dtrak.figures.charts import boxplots
from dtrak.figures.picture_sheets import side_by_side
from dtrak.figures.style import save_figure


def save_counterfactual_figures(result: Counterfactual, folder: Path) -> None:
    """Write boxplots.png and pictures.png into the folder of a result."""
    panels = {
        "ℓ2 distance to the original": {one.method: one.l2 for one in result.effects},
        f"cosine of {Path(result.settings['encoder']).name}": {one.method: one.cosine for one in result.effects},
    }
    save_figure(boxplots(panels), folder / "boxplots.png")
    pictures = {"original": result.originals, **{one.method: one.pictures for one in result.effects}}
    captions = [f"seed {seed}" for seed in result.queries.columns[SEED]]
    save_figure(side_by_side(pictures, captions), folder / "pictures.png")
