"""The arguments and options that only `dtrak evaluate` has."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dtrak.checks import MOST, shortened
from dtrak.cli.options import DIGITS, some_path, whole_number
from dtrak.errors import UsageError

if TYPE_CHECKING:
    from dtrak.runs.run import Run

RunToRetrain = Annotated[
    Path | None,
    typer.Argument(metavar="RUN", help="The folder of a run, whose model is retrained; or give --benchmark."),
]
Benchmark = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", parser=some_path, help="A benchmark folder to read, instead of a run."),
]
QueryKind = Annotated[
    str, typer.Option("--queries", metavar="KIND", help="The benchmark's set of queries: validation or generated.")
]
Output = Annotated[
    str, typer.Option(metavar="NAME", help="The objective that scores should predict: simple, or any other.")
]
EvaluatedMethods = Annotated[
    str,
    typer.Option(
        "--method", metavar="NAME", help="A method from `dtrak methods`, several such as trak,d-trak, or all."
    ),
]
EvaluatedDamping = Annotated[
    str,
    typer.Option(
        "--damping",
        metavar="λ",
        help="A fixed one: auto, spectrum, 0.1, absolute:5; chosen: fitted on half of the subsets and used for the "
        "other half; or best: fitted on the reported subsets, as in the paper.",
    ),
]
Grid = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="The dampings that chosen and best try: log, two for each power of ten; or paper, those of the paper, "
        "each divided by k, as the paper's random matrix is not divided by √k.",
    ),
]
LdsFile = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="LDS.json",
        parser=some_path,
        help="Where to write the LDS of every method and query.",
        show_default="RUN/lds.json",
    ),
]
LeftOutBy = Annotated[
    str,
    typer.Option("--by", metavar="COLUMN", help="The column of the training images whose groups are left out."),
]
CreditFile = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE.json",
        parser=some_path,
        help="Where to write the numbers.",
        show_default="RUN/credit.json",
    ),
]
TableFile = Annotated[
    Path | None,
    typer.Option("--table", metavar="FILE", parser=some_path, help="Write the table here: .txt, .csv, .md or .tex."),
]
# How models are retrained for a benchmark: each option sets a field of `RetrainingSettings`.
Subsets = Annotated[
    int | None,
    typer.Option(
        metavar="M",
        parser=whole_number(1, MOST["subsets"]),
        help="How many random subsets to retrain on.",
        show_default="64",
    ),
]
Fraction = Annotated[
    float | None,
    typer.Option(metavar="α", help="The fraction of the training images in each subset.", show_default="0.5"),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        metavar="S",
        parser=whole_number(1, MOST["seeds"]),
        help="How many models to train on each subset, with different seeds.",
        show_default="3",
    ),
]
SeedsOfOthers = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        metavar="S",
        parser=whole_number(1, MOST["seeds"]),
        help="How many models to train on each subset, with different seeds.",
        show_default="1",
    ),
]
OutputTimesteps = Annotated[
    str | None,
    typer.Option(
        metavar="K", help="The timesteps that losses are averaged over, written as --timesteps.", show_default="all"
    ),
]
OutputNoises = Annotated[
    int | None,
    typer.Option(
        metavar="Z",
        parser=whole_number(1, MOST["noises"]),
        help="The noises at each of these timesteps that losses are averaged over.",
        show_default="3",
    ),
]
ValidationCount = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=whole_number(1, MOST["validation"]),
        help="How many validation images are queries.",
        show_default="100",
    ),
]
KeepModels = Annotated[
    bool | None, typer.Option("--keep-models", help="Keep the retrained models, which ensembles need.")
]

# counterfactuals

QueryCount = Annotated[
    int | None,
    typer.Option(
        "--count",
        metavar="Q",
        parser=whole_number(1, MOST["count"]),
        help="How many generated pictures to draw again, the first ones.",
        show_default="60, or as many as there are",
    ),
]
Remove = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=whole_number(1, MOST["remove"]),
        help="How many training images to remove for each picture, the highest-scoring ones.",
        show_default="a fifth of all",
    ),
]
JudgingEncoder = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        metavar="NAME",
        help="The encoder for the cosine between pictures, also used by clip-dot and clip-cosine: efficientnet-lite0, "
        "or a CLIP model's folder or hub id.",
        show_default="openai/clip-vit-base-patch32",
    ),
]
Steps = Annotated[
    list[str] | None,
    typer.Option(
        "--step",
        metavar="T",
        help="Compare the models' estimates of the picture at this timestep of its trajectory, or at several: 400,300. "
        "journey-trak then has scores for each timestep.",
        show_default="the finished picture",
    ),
]


def chosen_steps(typed: list[str] | None) -> list[int]:
    """Parse the timesteps that were typed: ["400,300", "0"] gives [400, 300, 0]."""
    names = [one.strip() for text in typed or () for one in text.split(",")]
    for name in names:
        if not name.isdecimal() or len(name) >= DIGITS:
            raise UsageError(f"step {shortened(name)}: give a timestep such as 400, or several: 400,300")
    return [int(name) for name in names]


def chosen_checkpoint(run: "Run | None", typed: str | None) -> Path | None:
    """Return the folder of the checkpoint that was typed: one of a run, or any model's folder if there is no run."""
    from dtrak.runs.run import holds_model

    if typed is None:
        return None
    if run is not None:
        return run.checkpoint(typed)
    if not holds_model(Path(typed)):
        raise UsageError(f"checkpoint {typed}: there is no model in this folder")
    return Path(typed)
