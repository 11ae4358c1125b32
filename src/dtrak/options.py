"""The arguments and options of the command line: what each is called, what it takes, and how its help reads."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from dtrak.errors import choose


def whole_number(least: int) -> Callable[[str], int]:
    """A parser whose refusal names what was typed, which typer's own does not."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise typer.BadParameter(f"{text!r} is not a whole number from {least} on")
        return int(text)

    return parse


def _known_device(name: str | None) -> str | None:
    from dtrak.devices import devices

    if name is not None:
        choose("device", name, devices())
    return name


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
NewRun = Annotated[Path, typer.Option("--out", metavar="RUN", help="The folder of the run.")]
NamedRun = Annotated[
    Path | None, typer.Option("--out", metavar="RUN", help="The folder of the run.", show_default="runs/NAME")
]
Subset = Annotated[
    str | None, typer.Option(metavar="IDS", help="Train on these images only: ids in an .npy or .txt file.")
]
Count = Annotated[
    int | None,
    typer.Option(metavar="N", parser=whole_number(1), help="How many pictures.", show_default="the recipe's, 60"),
]
FirstSeed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="SEED",
        parser=whole_number(0),
        help="Of the first picture; the next has the next.",
        show_default="the recipe's, 0",
    ),
]

# attribution

RunOrNone = Annotated[
    Path | None, typer.Argument(metavar="RUN", help="The folder of a run; or give --model and --train.")
]
Queries = Annotated[
    str | None, typer.Option(metavar="IMAGES", help="The pictures asked about.", show_default="RUN/generated")
]
Method = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="One from `dtrak methods`, or several: trak,d-trak.", show_default="d-trak"),
]
ScoresFile = Annotated[
    Path | None,
    typer.Option("--out", metavar="SCORES.npz", help="Where to write the scores.", show_default="RUN/scores.npz"),
]
Model = Annotated[str | None, typer.Option(metavar="MODEL", help="A diffusers folder or a hub id.")]
Train = Annotated[str | None, typer.Option("--train", metavar="IMAGES", help="What the model was trained on.")]
Size = Annotated[
    int | None,
    typer.Option(
        metavar="PIXELS", parser=whole_number(1), help="With --model: crop all images to squares and resize them."
    ),
]
Timesteps = Annotated[
    str | None,
    typer.Option(metavar="K", help="K evenly spaced ones, cumulative:K, or a list 0,100,200.", show_default="10"),
]
Draws = Annotated[
    int | None,
    typer.Option(metavar="Z", parser=whole_number(1), help="Noises at each timestep.", show_default="1"),
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
    typer.Option(metavar="N", parser=whole_number(1), help="Numbers kept for each image.", show_default="4096"),
]
Damping = Annotated[
    str | None,
    typer.Option(metavar="λ", help="As a fraction of the mean eigenvalue, or absolute:5.", show_default="0.1"),
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
    typer.Option(metavar="FOLDER", help="Keep features here for the next question.", show_default="RUN/features"),
]
Seed = Annotated[
    int | None,
    typer.Option(metavar="SEED", parser=whole_number(0), help="Of the noise and the projection.", show_default="0"),
]
Dtype = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="Of features on disk: float32, float16, bfloat16.", show_default="float32"),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        metavar="N", parser=whole_number(1), help="Images that share a pass.", show_default="by the model's size"
    ),
]
Autocast = Annotated[bool, typer.Option("--autocast", help="Forward passes in bfloat16.")]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out images whose gradient is not finite, instead of failing.")
]
