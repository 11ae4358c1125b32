"""What can be typed after `dtrak evaluate` and nowhere else."""

from pathlib import Path
from typing import Annotated

import typer

from dtrak.cli.options import DIGITS, some_path, whole_number
from dtrak.errors import UsageError
from dtrak.limits import MOST, shortened

RunToRetrain = Annotated[
    Path | None, typer.Argument(metavar="RUN", help="The folder of a run to retrain; or give --benchmark.")
]
Benchmark = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", parser=some_path, help="A benchmark to read, instead of a run to retrain."),
]
QueryKind = Annotated[str, typer.Option("--queries", metavar="KIND", help="validation or generated.")]
Output = Annotated[str, typer.Option(metavar="NAME", help="What the scores should predict: simple, or any objective.")]
EvaluatedMethods = Annotated[
    str, typer.Option("--method", metavar="NAME", help="One from `dtrak methods`, or several: trak,d-trak, or all.")
]
EvaluatedDamping = Annotated[
    str,
    typer.Option(
        "--damping",
        metavar="λ",
        help="chosen on half of the subsets, for the other half; best in hindsight, the paper's way; or one to keep: "
        "auto, spectrum, 0.1, absolute:5.",
    ),
]
Grid = Annotated[str, typer.Option(metavar="NAME", help="What chosen and best try: log, half decades; or paper's.")]
LdsFile = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="LDS.json",
        parser=some_path,
        help="Where to write the numbers.",
        show_default="RUN/lds.json",
    ),
]
TableFile = Annotated[
    Path | None,
    typer.Option("--table", metavar="FILE", parser=some_path, help="Write the table here: .txt, .csv, .md or .tex."),
]
# How models are retrained for a benchmark, by the names that `RetrainingSettings` has for them.
Subsets = Annotated[
    int | None,
    typer.Option(
        metavar="M", parser=whole_number(1, MOST["subsets"]), help="Random subsets to retrain on.", show_default="64"
    ),
]
Fraction = Annotated[float | None, typer.Option(metavar="α", help="Of the images, in each subset.", show_default="0.5")]
Seeds = Annotated[
    int | None,
    typer.Option(
        metavar="S", parser=whole_number(1, MOST["seeds"]), help="Trainings of each subset.", show_default="3"
    ),
]
OutputTimesteps = Annotated[
    str | None,
    typer.Option(metavar="K", help="Over which outputs are averaged, as --timesteps.", show_default="all of them"),
]
OutputNoises = Annotated[
    int | None,
    typer.Option(
        metavar="Z", parser=whole_number(1, MOST["noises"]), help="At each of these timesteps.", show_default="3"
    ),
]
ValidationCount = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=whole_number(1, MOST["validation"]),
        help="How many validation images are asked about.",
        show_default="100",
    ),
]
KeepModels = Annotated[bool | None, typer.Option("--keep-models", help="Keep the retrained models, for ensembles.")]

# counterfactuals

QueryCount = Annotated[
    int | None,
    typer.Option(
        "--count",
        metavar="Q",
        parser=whole_number(1, MOST["count"]),
        help="Ask about the first so many generated pictures.",
        show_default="60, or as many as there are",
    ),
]
Remove = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=whole_number(1, MOST["remove"]),
        help="Training images that are removed for each picture, the highest-scoring ones.",
        show_default="a fifth of all",
    ),
]
JudgingEncoder = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        metavar="NAME",
        help="Whose cosine counts, as for clip-dot and clip-cosine: efficientnet-lite0, or a CLIP model by folder or "
        "hub id.",
        show_default="openai/clip-vit-base-patch32",
    ),
]
Steps = Annotated[
    list[str] | None,
    typer.Option(
        "--step",
        metavar="T",
        help="Compare what the models take the picture for at this timestep of its trajectory; several: 400,300. "
        "journey-trak then scores at each.",
        show_default="the finished picture",
    ),
]


def chosen_steps(typed: list[str] | None) -> list[int]:
    """["400,300", "0"] → [400, 300, 0]."""
    names = [one.strip() for text in typed or () for one in text.split(",")]
    for name in names:
        if not name.isdecimal() or len(name) >= DIGITS:
            raise UsageError(f"step {shortened(name)}: give a timestep such as 400, or several: 400,300")
    return [int(name) for name in names]
