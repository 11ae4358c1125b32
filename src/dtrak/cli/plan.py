"""The command `dtrak plan`."""

from pathlib import Path
from typing import Annotated

import typer

from dtrak.checks import MOST
from dtrak.cli import options
from dtrak.cli.options import some_path, whole_number
from dtrak.errors import UsageError
from dtrak.tables import check_table_path, show, tell, write_table

Count = Annotated[
    int,
    typer.Option("--images", metavar="N", parser=whole_number(1, 10**12), help="How many training images."),
]
Planned = Annotated[str, typer.Option(metavar="MODEL", help="A diffusers folder or a hub id.")]
Gpus = Annotated[
    int | None,
    typer.Option(metavar="G", parser=whole_number(1, MOST["workers"]), help="How many GPUs work at a time."),
]
Rate = Annotated[
    float | None,
    typer.Option(
        metavar="R", help="Passes in a second of one GPU, e.g. measured there.", show_default="measured on this machine"
    ),
]
Parameters = Annotated[
    str | None, typer.Option(metavar="PATTERN", help="Use only parameters whose name matches.", show_default="all")
]
PlanFile = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", parser=some_path, help="Write it here: .csv, .md, .tex or .txt.")
]


def plan(
    images: Count,
    model: Planned,
    gpus: Gpus = None,
    rate: Rate = None,
    lora: options.Lora = None,
    parameters: Parameters = None,
    out: PlanFile = None,
    device: options.Device = None,
) -> None:
    """Print what attribution of many images would take.

    For each choice there are passes, hours, disk, memory and the time of a question. The speed of the model is measured
    here with a few random pictures, or given with --rate.
    """
    from dtrak.evaluation.cost import forecast, measured_rate

    if rate is not None and not 0 < rate < float("inf"):
        raise UsageError(f"rate {rate}: it must be positive, in passes per second")
    if out is not None:
        check_table_path(out)
    from dtrak.models import load_model

    opened = load_model(model, lora)
    workers, where = gpus or 1, options.chosen_device(device)
    if rate is None:
        rate = measured_rate(opened.to(where), parameters)
        said = f"{rate:,.1f} passes per second, measured on this machine ({where}) with random pictures"
    else:
        said = f"{rate:,.1f} passes per second, as given"
    table = forecast(images, rate, workers, f"{said}; × {workers} at a time.")
    show(table)
    if out is not None:
        write_table(table, out)
        tell("The plan", out)
