"""The arguments and options of the command line, with their names, parsers and help texts."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from dtrak.checks import MOST, shortened
from dtrak.errors import check_known

DIGITS = 30  # a number with more digits is above every limit


def whole_number(least: int, most: int) -> Callable[[str | int], int]:
    """Return a parser of whole numbers whose error message repeats what was typed; typer's parser does not."""

    def parse(typed: str | int) -> int:
        text = str(typed)  # typer passes a default as a number
        if not text.isdecimal() or (len(text) < DIGITS and int(text) < least):
            raise typer.BadParameter(f"{shortened(text)} is not a whole number from {least} on")
        if len(text) >= DIGITS or int(text) > most:
            raise typer.BadParameter(f"{shortened(text)} is more than {most:,}")
        return int(text)

    return parse


def some_path(typed: str | Path) -> Path:
    """Parse a path; refuse an empty text, which would mean the current folder."""
    if not str(typed):
        raise typer.BadParameter("the name is empty")
    return Path(typed)


def _known_device(name: str | None) -> str | None:
    from dtrak.devices import devices

    if name is not None:
        check_known("device", name, devices())
    return name


def chosen_device(name: str | None) -> str:
    """Return the device that was typed, or the fastest one of this machine."""
    from dtrak.devices import devices

    return name or devices()[0]


Debug = Annotated[
    bool, typer.Option("--debug", help="Show a traceback with an error; it may stand anywhere in the command.")
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE", help="cpu, cuda, cuda:1 or mps.", show_default="the fastest", callback=_known_device
    ),
]

# runs

RunOrIndex = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or of an index.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help="A name from `dtrak recipes`, or a YAML file.")]
RecipeName = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="The recipe to print; without it, all are listed.", show_default=False),
]
NewRun = Annotated[Path, typer.Option("--out", metavar="RUN", parser=some_path, help="The folder of the run.")]
DemoRun = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="RUN",
        parser=some_path,
        help="The folder of the run.",
        show_default="runs/digits, or runs/ready with --ready",
    ),
]
Ready = Annotated[
    bool, typer.Option("--ready", help="Open the explorer on a finished run that comes with the package.")
]
NamedRun = Annotated[
    Path | None,
    typer.Option("--out", metavar="RUN", parser=some_path, help="The folder of the run.", show_default="runs/NAME"),
]
Scale = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="small runs in minutes, if the recipe has this scale.", show_default="full"),
]
TrainOverride = Annotated[
    str | None, typer.Option("--train", metavar="IMAGES", help="Training images, instead of the recipe's.")
]
ValidationOverride = Annotated[
    str | None, typer.Option("--validation", metavar="IMAGES", help="Validation images, instead of the recipe's.")
]
BaseOverride = Annotated[
    str | None,
    typer.Option(
        "--base",
        metavar="MODEL",
        help="The Stable Diffusion model to start from, instead of the recipe's: a pipeline's folder or hub id.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only print what the run would take: steps, passes, memory and disk.")
]
Subset = Annotated[
    str | None, typer.Option(metavar="IDS", help="Train on these images only: ids in an .npy or .txt file.")
]
Count = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=whole_number(1, MOST["count"]),
        help="How many pictures to draw.",
        show_default="the recipe's, 60",
    ),
]
Prompt = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="The prompt for all pictures.",
        show_default="the prompts of the training images, one after another",
    ),
]
FirstSeed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="SEED",
        parser=whole_number(0, MOST["first_seed"]),
        help="The seed of the first picture; the next picture has the next seed.",
        show_default="the recipe's, 0",
    ),
]


def recipe_changes(train: str | None, validation: str | None, base: str | None) -> dict[str, Any]:
    """Return the recipe's fields that options replace, by section."""
    data = {name: value for name, value in (("train", train), ("validation", validation)) if value is not None}
    return ({"data": data} if data else {}) | ({"model": {"base": base}} if base is not None else {})


# attribution

RunOrNone = Annotated[
    Path | None, typer.Argument(metavar="RUN", help="The folder of a run; or give --model and --train instead.")
]
Queries = Annotated[
    str | None, typer.Option(metavar="IMAGES", help="The pictures to explain.", show_default="RUN/generated")
]
Method = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="A method from `dtrak methods`, several such as trak,d-trak, or all.",
        show_default="the recipe's; else step-trak, or d-trak with --objective",
    ),
]
ScoresFile = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        parser=some_path,
        help="Where to write the scores: an .npz file, or a .csv file with a line for each pair of images.",
        show_default="RUN/scores.npz",
    ),
]
Model = Annotated[str | None, typer.Option(metavar="MODEL", help="A diffusers folder or a hub id.")]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="With --model: the precision of a pipeline's frozen weights, bfloat16 or float16.",
        show_default="float32",
    ),
]
RunOfModel = Annotated[
    Path | None,
    typer.Option(
        "--run",
        metavar="RUN",
        parser=some_path,
        help="With --model: make a run of the model, which `report`, `serve` and `credit` take.",
    ),
]
FromModel = Annotated[
    str | None,
    typer.Option("--from", metavar="MODEL", help="Print a recipe for a model like this one, to complete."),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="An earlier checkpoint instead of the final model: its name or number of steps in RUN/checkpoints, or its "
        "folder.",
    ),
]
Lora = Annotated[
    str | None,
    typer.Option(metavar="LORA", help="With --model: its LoRA weights, as a folder, a .safetensors file or a hub id."),
]
PromptTemplate = Annotated[
    str | None,
    typer.Option(
        "--prompt",
        metavar="TEMPLATE",
        help="With --model: the prompt of images that have none, such as 'a {label} painting'.",
        show_default="their caption",
    ),
]
Train = Annotated[str | None, typer.Option("--train", metavar="IMAGES", help="The images the model was trained on.")]
Size = Annotated[
    int | None,
    typer.Option(
        metavar="PIXELS",
        parser=whole_number(1, MOST["size"]),
        help="With --model: crop all images to squares and resize them.",
        show_default="the model's size, if they have another",
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
Top = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=whole_number(1, MOST["top"]),
        help="Keep only the N strongest training images of each picture; a .csv file has N lines for each.",
        show_default="all",
    ),
]
Shard = Annotated[
    str | None,
    typer.Option(
        metavar="I/COUNT",
        help="Only compute this share of the features of training images, such as 3/64, and score nothing.",
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        parser=some_path,
        help="Keep the features in this folder, so that the next attribution can use them.",
        show_default="RUN/features",
    ),
]
# the explorer

ServedMethods = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="A method from `dtrak methods`, several to switch between such as trak,d-trak, or all.",
        show_default="those of the last attribution, else the recipe's",
    ),
]
ServedDamping = Annotated[
    str | None,
    typer.Option(
        "--damping",
        metavar="λ",
        help="The damping at first, as for `dtrak attribute`; the page has a slider for it.",
        show_default="that of the last attribution, else the recipe's",
    ),
]
Host = Annotated[
    str, typer.Option(metavar="ADDRESS", help="The address to listen on; with 0.0.0.0, other machines can connect.")
]
Port = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=whole_number(0, 2**16 - 1),
        help="The port to listen on; 0 takes any free one.",
        show_default="8321, or the next free one",
    ),
]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Print the address, but do not open a browser.")]
