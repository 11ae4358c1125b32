"""The commands that make a run: `dtrak demo`, `run`, `train` and `generate`."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from dtrak.cli.look_commands import NoBrowser, Port, serve
from dtrak.cli.shared_options import Device, Place, RunFolder, fastest, option, whole
from dtrak.evaluation.cost import check_run, plan
from dtrak.methods import EVERY_METHOD, chosen_methods
from dtrak.report import write_report
from dtrak.runs import drawing, training
from dtrak.runs.ready import ready_run
from dtrak.runs.recipes import load_recipe
from dtrak.runs.run import Run
from dtrak.runs.run_questions import attribute_run, question_of, settings_of
from dtrak.tables import show, tell

Recipe = Annotated[str, Parameter("RECIPE", help="A name from `dtrak recipes`, or a YAML file.")]


def demo(
    *,
    out: Annotated[
        Place | None, option("RUN", "The folder of the run.", "runs/digits, or runs/ready with --ready")
    ] = None,
    ready: Annotated[bool, Parameter(help="Open the explorer on a finished run that comes with the package.")] = False,
    port: Port = None,
    no_browser: NoBrowser = False,
    device: Device = None,
) -> None:
    """Try everything on small images of digits, in minutes.

    The command trains a small model, draws digits with it, scores the training digits for each of them, and writes the
    result to RUN/report.html. With --ready, it trains nothing: it opens the explorer on a run that comes with the
    package, in seconds.
    """
    if ready:
        folder = out or Path("runs/ready")
        ready_run(folder)
        serve(folder, port=port, no_browser=no_browser, device=device)
    else:
        run("digits", out=out or Path("runs/digits"), device=device)


def run(
    recipe: Recipe,
    /,
    *,
    out: Annotated[Place | None, option("RUN", "The folder of the run.", "runs/NAME")] = None,
    device: Device = None,
    scale: Annotated[str | None, option("NAME", "small runs in minutes, if the recipe has this scale.", "full")] = None,
    train_source: Annotated[
        str | None, option("IMAGES", "Training images, instead of the recipe's.", name="--train")
    ] = None,
    validation: Annotated[str | None, option("IMAGES", "Validation images, instead of the recipe's.")] = None,
    base: Annotated[
        str | None,
        option(
            "MODEL", "The Stable Diffusion model to start from, instead of the recipe's: a pipeline's folder or hub id."
        ),
    ] = None,
    dry_run: Annotated[
        bool, Parameter(help="Only print what the run would take: steps, passes, memory and disk.")
    ] = False,
) -> None:
    """Train, generate, attribute and report, as a recipe says."""
    data = {name: value for name, value in (("train", train_source), ("validation", validation)) if value is not None}
    changes: dict[str, Any] = {"data": data} if data else {}
    if base is not None:
        changes["model"] = {"base": base}
    loaded, device = load_recipe(recipe, scale, changes), fastest(device)
    folder = out or loaded.folder
    if dry_run:
        show(plan(loaded, folder, device))
        return
    check_run(Run(folder, loaded), device)
    made = Run.create(folder, loaded)
    model = training.train(made, device)
    generation, method = loaded.generation, loaded.attribution.method
    drawing.generate(made, model, generation.count, generation.seed, generation.steps)
    settings = settings_of(made)
    queries = made.query_source(str(made.folder / "generated"))
    question = question_of(made, queries, chosen_methods(method, settings.objective), settings)
    attribute_run(made, question, device=device, every=method == EVERY_METHOD)
    tell("The report", write_report(made))


def train(
    recipe: Recipe,
    /,
    *,
    out: Annotated[Place, option("RUN", "The folder of the run.")],
    subset: Annotated[str | None, option("IDS", "Train on these images only: ids in an .npy or .txt file.")] = None,
    device: Device = None,
) -> None:
    """Train a model on a recipe's images.

    The command writes RUN/model, in diffusers' layout, and RUN/checkpoints.
    """
    loaded = load_recipe(recipe)
    wanted = Run(out, loaded if subset is None else loaded.with_subset(subset))
    if not wanted.is_trained:
        check_run(wanted, fastest(device))
    started = Run.create(out, loaded, subset)
    if started.is_trained:
        tell("The model is trained already", out / "model")
        return
    training.train(started, fastest(device))
    tell("The model", out / "model")


def generate(
    run_folder: RunFolder,
    /,
    *,
    count: Annotated[
        int | None, option("N", "How many pictures to draw.", "the recipe's, 60", whole(1, "count"))
    ] = None,
    seed: Annotated[
        int | None,
        option(
            "SEED",
            "The seed of the first picture; the next picture has the next seed.",
            "the recipe's, 0",
            whole(0, "first_seed"),
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        option("TEXT", "The prompt for all pictures.", "the prompts of the training images, one after another"),
    ] = None,
    device: Device = None,
) -> None:
    """Draw pictures with a run's model.

    The command writes RUN/generated, which then holds these N pictures and no others.
    """
    opened = Run.open(run_folder)
    usual, model = opened.generation, opened.model().to(fastest(device))
    first = usual.seed if seed is None else seed
    drawing.generate(opened, model, count or usual.count, first, usual.steps, prompt)
    tell("The pictures", run_folder / "generated")
