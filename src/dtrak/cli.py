"""The command line: parse, call, print. Everything that takes long is imported when a command needs it."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dtrak.errors import DtrakError, UsageError
from dtrak.progress import say

app = typer.Typer(
    help="Which training images made this picture? Data attribution for diffusion models.",
    epilog="A first look: dtrak demo. An error is one line; with --debug anywhere it comes with its traceback.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)
output = Console(highlight=False, soft_wrap=True)

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A name from `dtrak recipes`, or a YAML file.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or mps.", show_default="the fastest there is")]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="RUN", help="The folder of the run.")] = Path("runs/digits"),
    device: Device = None,
) -> None:
    """Train, generate, attribute and report on the embedded digits: a few minutes on two cores."""
    run("digits", out, device)


@app.command()
def run(
    recipe: RecipeName,
    out: Annotated[Path | None, typer.Option(metavar="RUN", help="The run's folder.", show_default="runs/NAME")] = None,
    device: Device = None,
) -> None:
    """Train, generate, attribute and report as a recipe says. Interrupted, it goes on where it stopped."""
    from dtrak.pipeline import run_all
    from dtrak.recipes import load_recipe
    from dtrak.runs import Run

    loaded = load_recipe(recipe)
    report_path = run_all(Run.create(out or Path("runs") / loaded.name, loaded), chosen_device(device))
    say(f"The report: {report_path}")


@app.command()
def train(
    recipe: RecipeName,
    out: Annotated[Path, typer.Option(metavar="RUN", help="The run's folder.")],
    subset: Annotated[
        str | None, typer.Option(metavar="IDS", help="Train on these images only: ids in an .npy or .txt file.")
    ] = None,
    device: Device = None,
) -> None:
    """Train a model on a recipe's images → RUN/model, RUN/checkpoints. Killed, it goes on where it stopped."""
    from dtrak.recipes import load_recipe
    from dtrak.runs import Run
    from dtrak.training import train as train_model

    train_model(Run.create(out, load_recipe(recipe), subset), chosen_device(device))
    say(f"The model: {out / 'model'}")


@app.command()
def generate(
    run_folder: RunFolder,
    count: Annotated[int | None, typer.Option(min=1, help="How many pictures.", show_default="the recipe's")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the first; each has its own.")] = None,
    device: Device = None,
) -> None:
    """Draw pictures with DDIM → RUN/generated, one seed each."""
    from dtrak.runs import Run
    from dtrak.sampling import generate as generate_pictures

    opened = Run.open(run_folder)
    recipe = opened.recipe.generation
    model = opened.model().to(chosen_device(device))
    first = recipe.seed if seed is None else seed
    generate_pictures(opened, model, count or recipe.count, first, recipe.steps)
    say(f"The pictures: {run_folder / 'generated'}")


@app.command()
def attribute(
    run_folder: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="A run; or give --model and --train.")
    ] = None,
    queries: Annotated[
        str | None,
        typer.Option(metavar="IMAGES", help="The pictures asked about.", show_default="RUN/generated"),
    ] = None,
    method: Annotated[str, typer.Option(help="A name from `dtrak methods`, or several: trak,d-trak.")] = "d-trak",
    out: Annotated[
        Path | None, typer.Option(metavar="SCORES.npz", help="Where to write.", show_default="RUN/scores.npz")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="A diffusers folder or a hub id.")] = None,
    train_source: Annotated[
        str | None, typer.Option("--train", metavar="IMAGES", help="The images that the model was trained on.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="With --model: centre-crop and resize all images to this many pixels.")
    ] = None,
    timesteps: Annotated[
        str | None,
        typer.Option(
            metavar="K", help="K evenly spaced timesteps, cumulative:K, or a list 0,100,200.", show_default="10"
        ),
    ] = None,
    projection: Annotated[
        str | None,
        typer.Option(help="sketch, dense, dense-rademacher or identity.", show_default="sketch"),
    ] = None,
    projection_dim: Annotated[
        int | None, typer.Option(min=1, help="Numbers kept per image.", show_default="4096")
    ] = None,
    damping: Annotated[
        str | None,
        typer.Option(help="λ as a fraction of the mean eigenvalue, or absolute:5.", show_default="0.1"),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="For d-trak: simple, elbo, square, avg, l1, l2, linf or interpolated(η).", show_default="square"
        ),
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Only parameters whose name matches, e.g. 'up_blocks|conv_out'."),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep features here for the next question.", show_default="RUN/features"),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of noise and projection.", show_default="0")] = None,
    device: Device = None,
) -> None:
    """Score every training image for every picture asked about. Interrupted, it goes on where it stopped.

    IMAGES is digits:train, digits:validation, a folder, an .npz file, an image, or hf:name:split.
    """
    given: dict[str, Any] = {
        "method": method,
        "timesteps": timesteps,
        "projection": projection,
        "projection_dim": projection_dim,
        "damping": damping,
        "objective": objective,
        "parameters": parameters,
        "cache": cache,
        "seed": seed,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if run_folder is not None:
        if model is not None or train_source is not None or size is not None:
            raise UsageError(f"give a run ({run_folder}) or --model and --train, not both")
        _attribute_run(run_folder, queries, out, changes, chosen_device(device))
    elif model is None or train_source is None or queries is None or out is None:
        raise UsageError("give a run, or all of --model, --train, --queries and --out")
    else:
        _attribute_model(model, train_source, queries, out, size, changes, chosen_device(device))


def _attribute_run(
    run_folder: Path, queries: str | None, out: Path | None, changes: dict[str, Any], device: str
) -> None:
    from dtrak.pipeline import attribute_run
    from dtrak.runs import Run
    from dtrak.scores import save_scores

    opened = Run.open(run_folder)
    source = queries or str(run_folder / "generated")
    if queries is None and not Path(source).exists():
        raise UsageError(
            f"{run_folder} has no generated pictures yet: `dtrak generate {run_folder}`, or give --queries"
        )
    scores = attribute_run(opened, opened.model(), source, changes, device)
    if out is not None:
        save_scores(out, scores)
    say(f"The scores: {out or run_folder / 'scores.npz'}")


def _attribute_model(
    model: str, train_source: str, queries: str, out: Path, size: int | None, changes: dict[str, Any], device: str
) -> None:
    from dtrak.attribution import attribute as attribute_images
    from dtrak.data import load_images
    from dtrak.methods import split_methods
    from dtrak.models import load_model
    from dtrak.scores import save_scores

    methods = split_methods(changes.pop("method"))
    train_images, query_images = (load_images(source, size=size) for source in (train_source, queries))
    scores = attribute_images(load_model(model), train_images, query_images, methods, device=device, **changes)
    save_scores(out, scores)
    say(f"The scores: {out}")


@app.command()
def report(run_folder: RunFolder) -> None:
    """Show the run's pictures beside the training images they came from → RUN/report.html."""
    from dtrak.report import write_report
    from dtrak.runs import Run

    say(f"The report: {write_report(Run.open(run_folder))}")


@app.command()
def methods() -> None:
    """List the attribution methods, what each needs and what it costs."""
    from dtrak.methods import METHODS

    table = Table("method", "what it is", "needs", "costs", box=None, pad_edge=False)
    for one in METHODS.values():
        table.add_row(one.name, one.summary, one.needs, one.cost)
    output.print(table)


@app.command()
def recipes(name: Annotated[str | None, typer.Argument(help="Print this one.", show_default=False)] = None) -> None:
    """List the recipes, or print one."""
    from dtrak.recipes import load_recipe, recipe_names, recipe_text

    if name is not None:
        output.print(recipe_text(name), markup=False, end="")
        return
    table = Table("recipe", "what it is", box=None, pad_edge=False)
    for one in recipe_names():
        table.add_row(one, load_recipe(one).summary)
    output.print(table)


@app.command()
def info() -> None:
    """Print versions, devices and cores: what to put in a bug report."""
    import torch

    from dtrak.runs import versions

    table = Table("", "", box=None, show_header=False, pad_edge=False)
    for name, value in versions().items():
        table.add_row(name, value)
    table.add_row("device", chosen_device(None))
    table.add_row("cores", str(os.cpu_count()))
    table.add_row("threads", str(torch.get_num_threads()))
    output.print(table)


def chosen_device(name: str | None) -> str:
    """The device that was asked for, if it is there; the fastest otherwise."""
    import torch

    from dtrak.attribution import best_device

    if name is None:
        return best_device()
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device {name!r} is not to be had here: {str(error).splitlines()[0]}") from None
    return name


def main() -> None:
    """Run a command; whatever goes wrong is one line on standard error and an exit code."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    failure: BaseException
    try:
        sys.exit(app(arguments, prog_name="dtrak", standalone_mode=False))
    except typer.TyperException as error:
        code, message, failure = error.exit_code, f"{error.format_message()} (--help tells more)", error
    except DtrakError as error:
        code, message, failure = error.exit_code, str(error), error
    except KeyboardInterrupt as error:
        code, message, failure = 130, "interrupted; the same command goes on where this one stopped", error
    except Exception as error:
        code, message, failure = 1, f"{type(error).__name__}: {error} (--debug shows where)", error
    if debug:
        raise failure
    print(f"dtrak: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
