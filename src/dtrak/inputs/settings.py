"""The settings of attribution are declared here, once for Python, recipes and the command line.

A recipe's section `attribution` has these fields. Commands have an option for each field with an `Option`. The function
`dtrak.attribute` has them in its signature.
"""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from dtrak.checks import check_number
from dtrak.features.settings import DEFAULT_ENCODER, FeatureSettings, Option


@dataclass(frozen=True)
class Settings(FeatureSettings):
    """The settings of features and of scores, and what some methods need in addition to the model and the images."""

    objective: Annotated[
        str | None,
        Option("NAME", "For d-trak: simple, elbo, square, avg, l1, l2, linf or interpolated(η).", "square"),
    ] = None
    damping: float | str = "auto"  # λ: auto, spectrum, a fraction of the mean eigenvalue, or absolute:5
    checkpoints: Annotated[
        Path | None, Option("FOLDER", "For tracin, gas, retrac: models from the training.", "RUN/checkpoints")
    ] = None
    checkpoint_count: Annotated[int, Option("N", "How many of them, evenly spaced.")] = 4
    retrained: Annotated[
        Path | None,
        Option(
            "FOLDER",
            "For ensembles, empirical-influence, datamodel: a benchmark folder.",
            "RUN/retrained, else RUN/benchmark",
        ),
    ] = None
    ensemble_size: Annotated[int, Option("S", "How many of its models an ensemble has.")] = 8
    retrained_count: Annotated[
        int | None, Option("S", "Use only the models of its first S subsets.", "all of them")
    ] = None
    output: str = "simple"  # the objective whose values are read from the benchmark folder
    encoder: Annotated[
        str,
        Option("NAME", "For clip-dot, clip-cosine: efficientnet-lite0, or a CLIP model by folder or hub id."),
    ] = DEFAULT_ENCODER
    step: Annotated[
        int | None, Option("T", "For journey-trak: one timestep of the trajectory.", "all of them", least=0)
    ] = None
    ddim_steps: int = 50  # how many steps the queries were drawn with
    guidance: float | None = None  # the guidance that the queries were drawn with
    latents: Path | None = None  # a folder that keeps the latents of images; None: the folder of the features

    def __post_init__(self) -> None:
        from dtrak.kernels.damping import Damping

        super().__post_init__()
        Damping.parse(self.damping)
        for name in ("checkpoint_count", "ensemble_size", "retrained_count"):
            if (value := getattr(self, name)) is not None or name != "retrained_count":
                check_number(name, value)

    def plain(self) -> dict[str, Any]:
        """Return the settings by name, with paths as text, as a JSON file holds them."""
        return {name: str(one) if isinstance(one, Path) else one for name, one in asdict(self).items()}

    @property
    def features(self) -> FeatureSettings:
        """Return the settings of features alone."""
        return FeatureSettings(**{one.name: getattr(self, one.name) for one in fields(FeatureSettings)})
