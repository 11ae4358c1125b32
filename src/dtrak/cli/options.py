"""The arguments and options of the command line: what each is called, what it takes, and how its help reads."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dtrak.errors import check_known
from dtrak.limits import MOST, shortened

if TYPE_CHECKING:
    pass

DIGITS = 30  # more than any limit has


def whole_number(least: int, most: int) -> Callable[[str | int], int]:
    """A parser whose refusal names what was typed, which typer's own does not."""

    def parse(typed: str | int) -> int:
        text = str(typed)  # a default comes as a number
        if not text.isdecimal() or (len(text) < DIGITS and int(text) < least):
            raise typer.BadParameter(f"{shortened(text)} is not a whole number from {least} on")
        if len(text) >= DIGITS or int(text) > most:
            raise typer.BadParameter(f"{shortened(text)} is more than {most:,}")
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
        check_known("device", name, devices())
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
Damping = Annotated[
    str | None,
    typer.Option(
        metavar="λ",
        help="auto; spectrum, a cheaper rule; a fraction of the mean eigenvalue such as 0.1; or absolute:5.",
        show_default="auto",
    ),
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
