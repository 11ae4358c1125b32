"""The settings of attribution. This is their one list: recipes, commands and `dtrak.attribute` take them from here.

A setting is a part of the question, if another value makes other features or other scores, or it says how the work is
done, if every value gives the same scores.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_type_hints

from dtrak.checks import check_number, shortened
from dtrak.errors import UsageError, check_known, check_takes
from dtrak.registry import Registry

DEFAULT_ENCODER = "openai/clip-vit-base-patch32"
FOLDER = str | Path | None  # becomes a Path
Chosen = str | Sequence[str] | Callable[[str, Any], bool]  # a pattern, names, or a function of name and parameter


@dataclass(frozen=True)
class Option:
    """What a setting is for, and how the command line shows it."""

    help: str
    part: Literal["features", "scores", "work"]  # what changes with it; "work" changes nothing
    metavar: str = ""
    shown: str | None = None  # the default in words, if it needs some
    least: int = 1  # the smallest whole number that it takes
    is_typed: bool = True  # whether the command line has it


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting of features and scores; a function or an object may stand for a name where Python code gives it."""

    timesteps: Annotated[
        int | str, Option("K timesteps, or visible:K, uniform:K, cumulative:K, or a list: 0,100,200.", "features", "K")
    ] = 10
    draws: Annotated[int, Option("The number of noises at each timestep.", "features", "Z")] = 1
    noise: Annotated[str, Option("Noise shared by all images, or per-image.", "features", "KIND")] = "shared"
    projection: Annotated[
        str | Callable[..., Any] | None,
        Option(
            "factored, sketch, dense or identity.",
            "features",
            "KIND",
            "factored for methods of every copy, else sketch",
        ),
    ] = None
    projection_dim: Annotated[
        int, Option("How many numbers are kept for each image, or for each copy.", "features", "N")
    ] = 4096
    parameters: Annotated[
        Chosen | None,
        Option(
            "Use only parameters whose name matches, e.g. 'up_blocks|conv_out', or all.",
            "features",
            "PATTERN",
            "those of the LoRA, or all; for step-trak, a U-Net's later layers",
        ),
    ] = None
    seed: Annotated[int, Option("The seed of the noise and of the projection.", "features", "SEED", least=0)] = 0
    projection_seed: Annotated[
        int | None,
        Option("The seed of the projection alone.", "features", "SEED", "that of the noise", 0, is_typed=False),
    ] = None
    dtype: Annotated[str, Option("How features are stored: float32, float16 or bfloat16.", "features", "KIND")] = (
        "float32"
    )
    autocast: Annotated[bool, Option("Compute forward passes in bfloat16.", "features")] = False
    batch_size: Annotated[int | None, Option("How many images share a pass.", "work", "N", "by the model's size")] = (
        None
    )
    skip_bad: Annotated[bool, Option("Leave out images whose gradient is not finite, instead of failing.", "work")] = (
        False
    )
    objective: Annotated[
        str | Callable[..., Any] | None,
        Option("For d-trak: simple, elbo, square, avg, l1, l2, linf or interpolated(η).", "scores", "NAME", "square"),
    ] = None
    damping: Annotated[
        float | str,
        Option("auto; spectrum, a cheaper rule; a fraction of the mean eigenvalue; or absolute:5.", "scores", "λ"),
    ] = "auto"
    checkpoints: Annotated[
        str | Path | None,
        Option("For tracin, gas, retrac: models from the training.", "scores", "FOLDER", "RUN/checkpoints"),
    ] = None
    checkpoint_count: Annotated[int, Option("How many of them, evenly spaced.", "scores", "N")] = 4
    retrained: Annotated[
        str | Path | None,
        Option(
            "For ensembles, empirical-influence, datamodel: a benchmark folder.",
            "scores",
            "FOLDER",
            "RUN/retrained, else RUN/benchmark",
        ),
    ] = None
    ensemble_size: Annotated[int, Option("How many of its models an ensemble has.", "scores", "S")] = 8
    retrained_count: Annotated[
        int | None, Option("Use only the models of its first S subsets.", "scores", "S", "all of them")
    ] = None
    output: Annotated[
        str, Option("The objective that is read from the benchmark folder.", "scores", "NAME", is_typed=False)
    ] = "simple"
    encoder: Annotated[
        str | Callable[..., Any],
        Option("For clip-dot, clip-cosine: efficientnet-lite0, or a CLIP model by folder or hub id.", "scores", "NAME"),
    ] = DEFAULT_ENCODER
    step: Annotated[
        int | None, Option("For journey-trak: one timestep of the trajectory.", "scores", "T", "all of them", 0)
    ] = None
    ddim_steps: Annotated[int, Option("How many steps the queries were drawn with.", "scores", "N", is_typed=False)] = (
        50
    )
    guidance: Annotated[
        float | None, Option("The guidance that the queries were drawn with.", "scores", "G", is_typed=False)
    ] = None
    latents: Annotated[
        str | Path | None,
        Option("A folder that keeps latents, if not that of features.", "work", "FOLDER", is_typed=False),
    ] = None

    def __post_init__(self) -> None:
        from dtrak.features.encoders import ENCODERS
        from dtrak.features.store import DTYPES
        from dtrak.gradients.objectives import OBJECTIVES
        from dtrak.gradients.projections import PROJECTIONS
        from dtrak.kernels.damping import Damping

        if isinstance(self.timesteps, list | tuple):  # as Python code gives them
            object.__setattr__(self, "timesteps", "".join(f"{one}," for one in self.timesteps))
        for name in ("checkpoints", "retrained", "latents"):
            given = getattr(self, name)
            if not isinstance(given, str | Path | None):
                raise UsageError(f"{given!r} is a {type(given).__name__}: give the path of a folder")
            if isinstance(given, str):
                object.__setattr__(self, name, Path(given))
        Damping.parse(self.damping)
        check_known("noise", self.noise, ["shared", "per-image"])
        check_known("dtype", self.dtype, list(DTYPES))
        if isinstance(self.projection, str):
            PROJECTIONS.choose(self.projection)
        functions: tuple[tuple[Registry[Any], Any, tuple[str, ...]], ...] = (
            (OBJECTIVES, self.objective, ("predicted", "noise", "elbo_weights")),
            (PROJECTIONS, self.projection, ("dim", "shapes", "seed")),
            (ENCODERS, self.encoder, ("name", "device")),
        )
        for known, given, takes in functions:
            if callable(given):
                check_takes(known.kind, given, takes)
            elif not isinstance(given, str | None):
                said = f"give a name from {', '.join(known)}, or a function of ({', '.join(takes)})"
                raise UsageError(f"{known.kind} is {shortened(given)}: {said}")
        for name, option in OPTIONS.items():
            value, kind = getattr(self, name), KINDS[name]
            if kind is int or (kind == int | None and value is not None):
                check_number("seed" if "seed" in name else name, value, option.least)
        if isinstance(self.parameters, str):
            try:
                re.compile(self.parameters)
            except (re.error, OverflowError, RecursionError) as error:
                said = f"the parameter pattern {shortened(self.parameters)} is not a regular expression: {error}"
                raise UsageError(said) from None

    @property
    def facts(self) -> dict[str, Any]:
        """Return the settings that are a part of the question, as facts; functions and objects by their content.

        Folders are left out: what they hold is a fact of its own.
        """
        values = {name: getattr(self, name) for name, one in OPTIONS.items() if one.part != "work"}
        facts = {name: fact_of(value) for name, value in values.items() if KINDS[name] != FOLDER}
        return {**facts, "damping": str(self.damping)}  # 0.1 is the same as text

    def plain(self) -> dict[str, Any]:
        """Return the settings by name as a JSON file holds them: paths as text, and objects as their names."""
        return {
            one.name: value if isinstance(value := getattr(self, one.name), int | float | str | None) else _text(value)
            for one in fields(self)
        }


def fact_of(value: Any) -> Any:
    """Return a setting as a fact."""
    from dtrak.fingerprints import of_object  # it takes numpy, which help texts do not need

    return value if isinstance(value, int | float | str | None) else of_object(value)


def _text(value: Any) -> str:
    return str(value) if isinstance(value, Path) else f"a {type(value).__name__} given from Python"


_HINTS = get_type_hints(Settings, include_extras=True)
DEFAULTS: dict[str, Any] = {one.name: one.default for one in fields(Settings)}
OPTIONS: dict[str, Option] = {one.name: _HINTS[one.name].__metadata__[0] for one in fields(Settings)}
KINDS: dict[str, Any] = {one.name: _HINTS[one.name].__origin__ for one in fields(Settings)}


class Options(TypedDict, total=False):
    """The names and types of `Settings` for type checkers, which cannot read them from the class. A test compares."""

    timesteps: int | str
    draws: int
    noise: str
    projection: str | Callable[..., Any] | None
    projection_dim: int
    parameters: Chosen | None
    seed: int
    projection_seed: int | None
    dtype: str
    autocast: bool
    batch_size: int | None
    skip_bad: bool
    objective: str | Callable[..., Any] | None
    damping: float | str
    checkpoints: str | Path | None
    checkpoint_count: int
    retrained: str | Path | None
    ensemble_size: int
    retrained_count: int | None
    output: str
    encoder: str | Callable[..., Any]
    step: int | None
    ddim_steps: int
    guidance: float | None
    latents: str | Path | None
