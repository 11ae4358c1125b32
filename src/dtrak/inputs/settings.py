"""How training images are scored: every setting, declared once, for Python, recipes and the command line alike.

Recipes take these fields as their section `attribution`, commands make an option of each that has a help text, and
`dtrak.attribute` has them in its signature.
"""

from dataclasses import dataclass, fields
from pathlib import Path

from dtrak.features.encoders import DEFAULT_ENCODER
from dtrak.features.settings import FeatureSettings, setting
from dtrak.kernels.damping import Damping


@dataclass(frozen=True)
class Settings(FeatureSettings):
    """How features are made, what is scored from them, and what some methods need beside the model and the images."""

    objective: str | None = setting(
        None,
        "NAME",
        "For d-trak: simple, elbo, square, avg, l1, l2, linf or interpolated(η).",
        shown="square",
    )
    damping: float | str = "auto"  # λ: auto, spectrum, a fraction of the mean eigenvalue, or absolute:5
    checkpoints: Path | None = setting(
        None, "FOLDER", "For tracin, gas: models on their way through training.", shown="RUN/checkpoints"
    )
    checkpoint_count: int = setting(4, "N", "How many of them, evenly spaced.", least=1)
    retrained: Path | None = setting(
        None, "FOLDER", "For ensembles, empirical-influence, datamodel: a benchmark folder.", shown="RUN/benchmark"
    )
    ensemble_size: int = setting(8, "S", "How many of its models an ensemble has.", least=1)
    subsets: int | None = None  # only the models of its first so many subsets
    output: str = "simple"  # the objective that its losses are of
    encoder: str = setting(
        DEFAULT_ENCODER,
        "NAME",
        "For clip-dot, clip-cosine: efficientnet-lite0, or a CLIP model by folder or hub id.",
    )
    step: int | None = setting(
        None, "T", "For journey-trak: one timestep of the trajectory.", shown="all of them", least=0
    )
    ddim_steps: int = 50  # in which the queries were drawn
    guidance: float | None = None  # with which the queries were drawn
    latents: Path | None = None  # a folder that keeps what an autoencoder made of images; that of the features if None

    def __post_init__(self) -> None:
        super().__post_init__()
        Damping.parse(self.damping)

    @property
    def features(self) -> FeatureSettings:
        """The part that says how features are made."""
        return FeatureSettings(**{one.name: getattr(self, one.name) for one in fields(FeatureSettings)})
