"""The arguments and options of the command line: what each is called, what it takes, and how its help reads."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dtrak.errors import choose
from dtrak.limits import MOST, told

if TYPE_CHECKING:
    from dtrak.engines import Engine

DIGITS = 30  # more than any limit has


def whole_number(least: int, most: int) -> Callable[[str | int], int]:
    """A parser whose refusal names what was typed, which typer's own does not."""

    def parse(typed: str | int) -> int:
        text = str(typed)  # a default comes as a number
        if not text.isdecimal() or (len(text) < DIGITS and int(text) < least):
            raise typer.BadParameter(f"{told(text)} is not a whole number from {least} on")
        if len(text) >= DIGITS or int(text) > most:
            raise typer.BadParameter(f"{told(text)} is more than {most:,}")
        return int(text)

    return parse


def some_path(typed: str | Path) -> Path:
    """A parser that refuses the empty text, which would be this folder."""
    if not str(typed):
        raise typer.BadParameter("the name is empty")
    return Path(typed)


def _known_device(name: str | None) -> str | None:
    from dtrak.devices import devices

    if name is not None:
        choose("device", name, devices())
    return name


def chosen_device(name: str | None) -> str:
    """The device that was asked for, or the fastest there is."""
    from dtrak.devices import devices

    return name or devices()[0]


Debug = Annotated[bool, typer.Option("--debug", help="Show where an error comes from; works anywhere on the line.")]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE", help="cpu, cuda, cuda:1 or mps.", show_default="the fastest", callback=_known_device
    ),
]

# runs

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help="A name from `dtrak recipes`, or a YAML file.")]
NewRun = Annotated[Path, typer.Option("--out", metavar="RUN", parser=some_path, help="The folder of the run.")]
NamedRun = Annotated[
    Path | None,
    typer.Option("--out", metavar="RUN", parser=some_path, help="The folder of the run.", show_default="runs/NAME"),
]
Scale = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="small: the same in minutes, where the recipe has it.", show_default="full"),
]
OwnTrain = Annotated[
    str | None, typer.Option("--train", metavar="IMAGES", help="Train on these instead of the recipe's.")
]
OwnValidation = Annotated[
    str | None, typer.Option("--validation", metavar="IMAGES", help="Validation images instead of the recipe's.")
]
OwnBase = Annotated[
    str | None,
    typer.Option("--base", metavar="MODEL", help="The Stable Diffusion to start from: a pipeline's folder or hub id."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done: steps, passes, memory and disk.")]
Subset = Annotated[
    str | None, typer.Option(metavar="IDS", help="Train on these images only: ids in an .npy or .txt file.")
]
Count = Annotated[
    int | None,
    typer.Option(
        metavar="N", parser=whole_number(1, MOST["count"]), help="How many pictures.", show_default="the recipe's, 60"
    ),
]
Prompt = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Of all pictures.", show_default="those of the training images, in turn"),
]
FirstSeed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="SEED",
        parser=whole_number(0, MOST["first_seed"]),
        help="Of the first picture; the next has the next.",
        show_default="the recipe's, 0",
    ),
]


def recipe_changes(train: str | None, validation: str | None, base: str | None) -> dict[str, Any]:
    """What was typed in place of a recipe's own, section by section."""
    data = {name: value for name, value in (("train", train), ("validation", validation)) if value is not None}
    return ({"data": data} if data else {}) | ({"model": {"base": base}} if base is not None else {})


# attribution

RunOrNone = Annotated[
    Path | None, typer.Argument(metavar="RUN", help="The folder of a run; or give --model and --train.")
]
Queries = Annotated[
    str | None, typer.Option(metavar="IMAGES", help="The pictures asked about.", show_default="RUN/generated")
]
Method = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="One from `dtrak methods`, or several: trak,d-trak, or all.",
        show_default="the recipe's; mixed-trak, or d-trak with --objective",
    ),
]
ScoresFile = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        parser=some_path,
        help="Where to write the scores: an .npz, or a .csv with a line for each pair.",
        show_default="RUN/scores.npz",
    ),
]
Model = Annotated[str | None, typer.Option(metavar="MODEL", help="A diffusers folder or a hub id.")]
Lora = Annotated[
    str | None,
    typer.Option(metavar="LORA", help="With --model: LoRA weights for it, a folder, a .safetensors file or a hub id."),
]
PromptTemplate = Annotated[
    str | None,
    typer.Option(
        "--prompt",
        metavar="TEMPLATE",
        help="With --model: of images without a prompt of their own, such as 'a {label} painting'.",
        show_default="their caption",
    ),
]
Train = Annotated[str | None, typer.Option("--train", metavar="IMAGES", help="What the model was trained on.")]
Size = Annotated[
    int | None,
    typer.Option(
        metavar="PIXELS",
        parser=whole_number(1, MOST["size"]),
        help="With --model: crop all images to squares and resize them.",
    ),
]
Timesteps = Annotated[
    str | None,
    typer.Option(metavar="K", help="K evenly spaced ones, cumulative:K, or a list 0,100,200.", show_default="10"),
]
Draws = Annotated[
    int | None,
    typer.Option(metavar="Z", parser=whole_number(1, MOST["draws"]), help="Noises at each timestep.", show_default="1"),
]
Noise = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="shared by all images, or per-image.", show_default="shared"),
]
Projection = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="sketch, dense, dense-rademacher or identity.", show_default="sketch"),
]
ProjectionDim = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=whole_number(1, MOST["projection_dim"]),
        help="Numbers kept for each image.",
        show_default="4096",
    ),
]
Damping = Annotated[
    str | None,
    typer.Option(
        metavar="λ",
        help="auto; spectrum, a cheaper rule; a fraction of the mean eigenvalue such as 0.1; or absolute:5.",
        show_default="auto",
    ),
]
Objective = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="For d-trak: simple, elbo, square, avg, l1, l2, linf or interpolated(η).",
        show_default="square",
    ),
]
Parameters = Annotated[
    str | None,
    typer.Option(metavar="PATTERN", help="Only parameters whose name matches, e.g. 'up_blocks|conv_out'."),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        parser=some_path,
        help="Keep features here for the next question.",
        show_default="RUN/features",
    ),
]
FeatureSeed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="SEED",
        parser=whole_number(0, MOST["seed"]),
        help="Of the noise and the projection.",
        show_default="0",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="Of features on disk: float32, float16, bfloat16.", show_default="float32"),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=whole_number(1, MOST["batch_size"]),
        help="Images that share a pass.",
        show_default="by the model's size",
    ),
]
Autocast = Annotated[bool | None, typer.Option("--autocast", help="Forward passes in bfloat16.")]
SkipBad = Annotated[
    bool | None, typer.Option("--skip-bad", help="Leave out images whose gradient is not finite, instead of failing.")
]

# what some methods need beside the model and the images

Checkpoints = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        parser=some_path,
        help="For tracin, gas: models on their way through training.",
        show_default="RUN/checkpoints",
    ),
]
EnsembleSize = Annotated[
    int | None,
    typer.Option(
        metavar="S",
        parser=whole_number(1, MOST["ensemble_size"]),
        help="How many of them an ensemble has.",
        show_default="8",
    ),
]
CheckpointCount = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=whole_number(1, MOST["checkpoint_count"]),
        help="How many of them, evenly spaced.",
        show_default="4",
    ),
]
Retrained = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        parser=some_path,
        help="For ensembles, empirical-influence, datamodel: a benchmark folder.",
        show_default="RUN/benchmark",
    ),
]
Encoder = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="For clip-dot, clip-cosine: efficientnet-lite0, or a CLIP model by folder or hub id.",
        show_default="openai/clip-vit-base-patch32",
    ),
]
Step = Annotated[
    int | None,
    typer.Option(
        metavar="T",
        parser=whole_number(0, MOST["step"]),
        help="For journey-trak: one timestep of the trajectory.",
        show_default="all of them",
    ),
]

# where work runs

EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="Where gradients are computed and models retrained: process, pool or ray.",
        show_default="this process for gradients, a pool for retraining",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N", parser=whole_number(1, MOST["workers"]), help="Jobs at a time.", show_default="as many as fit"
    ),
]
Address = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Of a running Ray cluster; or auto.")]


def typed_engine(settings: dict[str, Any]) -> "Engine | None":
    """The engine that was asked for, if one was; its options are taken out of the settings."""
    from dtrak.engines import make_engine

    name, workers, address = (settings.pop(option, None) for option in ("engine", "workers", "address"))
    if name is None and workers is None and address is None:
        return None
    return make_engine(name or ("pool" if address is None else "ray"), workers, address)


# the explorer

ServedMethods = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="One from `dtrak methods`, or several to switch between: trak,d-trak, or all.",
        show_default="those of the last attribution, or the recipe's",
    ),
]
ServedDamping = Annotated[
    str | None,
    typer.Option(
        "--damping",
        metavar="λ",
        help="To begin with, as for `attribute`; the page has a slider.",
        show_default="that of the last attribution, or the recipe's",
    ),
]
Host = Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 lets other machines in.")]
Port = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=whole_number(0, MOST["port"]),
        help="0 takes any.",
        show_default="8321, or the next free one",
    ),
]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Only print the address.")]

# The options that say how scores are made, by the names that `attribute` has for them.
SCORING: dict[str, Any] = {
    "timesteps": Timesteps,
    "draws": Draws,
    "noise": Noise,
    "projection": Projection,
    "projection_dim": ProjectionDim,
    "objective": Objective,
    "parameters": Parameters,
    "cache": Cache,
    "dtype": Dtype,
    "batch_size": BatchSize,
    "autocast": Autocast,
    "skip_bad": SkipBad,
    "seed": FeatureSeed,
    "checkpoints": Checkpoints,
    "checkpoint_count": CheckpointCount,
    "retrained": Retrained,
    "ensemble_size": EnsembleSize,
    "encoder": Encoder,
    "step": Step,
    "engine": EngineName,
    "workers": Workers,
    "address": Address,
}


def with_scoring(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `SCORING`; those that were typed reach it as the dictionary `settings`.

    An option of the command's own takes the place of one with its name.
    """
    own = [one for one in inspect.signature(command).parameters.values() if one.name != "settings"]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in SCORING.items()
        if name not in {one.name for one in own}
    ]

    @wraps(command)
    def widened(**given: Any) -> None:
        settings = {one.name: given.pop(one.name) for one in more}
        command(**given, settings={name: value for name, value in settings.items() if value is not None})

    widened.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]
    widened.__annotations__ = {one.name: one.annotation for one in [*own, *more]}
    return widened
