"""The command line: parse, call, print. Everything that takes long is imported when a command needs it."""

import io
import logging
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from dtrak import sigterm
from dtrak.cli import evaluate, options
from dtrak.cli.scoring import Scoring, with_scoring
from dtrak.errors import DtrakError, UsageError
from dtrak.printing import output, show, show_yaml, tell

app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.add_typer(evaluate.app, name="evaluate")
INTERRUPTED = 130  # what shells call a process that Ctrl-C has ended


@app.callback(epilog="A first look, a few minutes on two cores: dtrak demo")
def start(debug: options.Debug = False) -> None:
    """Which training images made this picture? Attribution for diffusion models.

    Every long command can be interrupted, or killed, and run again: it goes on where it stopped.
    """


@app.command()
def demo(out: options.NewRun = Path("runs/digits"), device: options.Device = None) -> None:
    """Do it all on the embedded digits, in a few minutes.

    Trains a small model, generates digits, finds the training digits that they came from, and shows them in
    RUN/report.html.
    """
    run("digits", out, device)


@app.command()
def run(
    recipe: options.Recipe,
    out: options.NamedRun = None,
    device: options.Device = None,
    scale: options.Scale = None,
    train_source: options.OwnTrain = None,
    validation: options.OwnValidation = None,
    base: options.OwnBase = None,
    dry_run: options.DryRun = False,
) -> None:
    """Train, generate, attribute and report, as a recipe says."""
    from dtrak.runs.recipes import load_recipe

    loaded = load_recipe(recipe, scale, options.recipe_changes(train_source, validation, base))
    folder = out or loaded.folder
    if dry_run:
        from dtrak.evaluation.planning import plan

        show(plan(loaded, folder, options.chosen_device(device)))
        return

    from dtrak.cli.whole_run import run_all

    tell("The report", run_all(folder, loaded, options.chosen_device(device)))


@app.command()
def train(
    recipe: options.Recipe,
    out: options.NewRun,
    subset: options.Subset = None,
    device: options.Device = None,
) -> None:
    """Train a model on a recipe's images.

    Writes RUN/model, in diffusers' layout, and RUN/checkpoints.
    """
    from dtrak.runs.recipes import load_recipe
    from dtrak.runs.run import Run

    loaded = load_recipe(recipe)
    wanted = Run(out, loaded if subset is None else loaded.with_subset(subset))
    if not wanted.is_trained:
        from dtrak.evaluation.checking import check_run

        check_run(wanted, options.chosen_device(device))
    started = Run.create(out, loaded, subset)
    if started.is_trained:
        tell("The model is trained already", out / "model")
        return

    from dtrak.runs.training import train as train_model

    train_model(started, options.chosen_device(device))
    tell("The model", out / "model")


@app.command()
def generate(
    run_folder: options.RunFolder,
    count: options.Count = None,
    seed: options.FirstSeed = None,
    prompt: options.Prompt = None,
    device: options.Device = None,
) -> None:
    """Draw pictures with a run's model.

    Writes RUN/generated, which then holds the N pictures asked for and no others.
    """
    from dtrak.runs.run import Run

    opened = Run.open(run_folder)
    recipe = opened.recipe.generation
    model = opened.model().to(options.chosen_device(device))

    from dtrak.runs.drawing import generate as generate_pictures

    first = recipe.seed if seed is None else seed
    generate_pictures(opened, model, count or recipe.count, first, recipe.steps, prompt)
    tell("The pictures", run_folder / "generated")


@app.command()
@with_scoring
def attribute(
    scoring: Scoring,
    run_folder: options.RunOrNone = None,
    queries: options.Queries = None,
    method: options.Method = None,
    out: options.ScoresFile = None,
    model: options.Model = None,
    lora: options.Lora = None,
    prompt: options.PromptTemplate = None,
    train_source: options.Train = None,
    size: options.Size = None,
    damping: options.Damping = None,
    device: options.Device = None,
) -> None:
    """Score every training image for every picture asked about.

    Either for a run, whose recipe then decides what is not given here, and which keeps the scores for its report; or
    for a model trained elsewhere, with --model, --train, --queries and --out.

    IMAGES are digits:train, digits:validation, a folder, an .npz file, an image, or hf:name:split.
    """
    asked = scoring.asking_for(method, damping)
    if run_folder is not None:
        if any(one is not None for one in (model, lora, prompt, train_source, size)):
            raise UsageError(
                f"give a run ({run_folder}), or --model and --train (and --lora, --prompt, --size), not both"
            )
        _attribute_run(run_folder, queries, out, asked, device)
    elif model is None or train_source is None or queries is None or out is None:
        raise UsageError("give a run, or all of --model, --train, --queries and --out")
    else:
        _attribute_model((model, lora, prompt), train_source, queries, out, size, asked, device)


def _attribute_run(
    run_folder: Path, queries: str | None, out: Path | None, scoring: Scoring, device: str | None
) -> None:
    from dtrak.files import check_not_read, check_writable
    from dtrak.runs.run import Run

    opened = Run.open(run_folder)
    source = queries or str(run_folder / "generated")
    if queries is None and not Path(source).exists():
        raise UsageError(
            f"{run_folder} has no generated pictures yet: `dtrak generate {run_folder}`, or give --queries"
        )
    recipe = opened.recipe.attribution
    methods = scoring.method_names(scoring.settings(recipe), recipe.method)
    out = out or run_folder / "scores.npz"
    check_not_read(out, source, opened.recipe.data.train, run_folder / "recipe.yaml")
    check_writable(out)

    from dtrak.attribution.scores import save_scores
    from dtrak.runs.attributing import attribute_run, settings_of

    scores = attribute_run(
        opened,
        opened.model(),
        source,
        methods,
        scoring.settings(settings_of(opened)),
        cache=scoring.cache,
        device=options.chosen_device(device),
        engine=scoring.engine,
    )
    if out != run_folder / "scores.npz":
        save_scores(out, scores)
    tell("The scores", out)


def _attribute_model(
    model: tuple[str, str | None, str | None],
    train_source: str,
    queries: str,
    out: Path,
    size: int | None,
    scoring: Scoring,
    device: str | None,
) -> None:
    """Without a cache of the user's, features lie beside the scores for as long as they are needed to go on."""
    from dtrak.files import check_not_read, check_writable, kept_until_done
    from dtrak.images.images import load_images

    settings = scoring.settings()
    methods = scoring.method_names(settings)
    check_not_read(out, train_source, queries, *model[:2])
    train_images, query_images = (load_images(source, size=size) for source in (train_source, queries))
    check_writable(out)

    from dtrak.attribution.attributing import attribute_with
    from dtrak.attribution.scores import save_scores
    from dtrak.models import load_model

    with kept_until_done(scoring.cache, out) as cache:
        scores = attribute_with(
            load_model(*model),
            train_images,
            query_images,
            methods,
            settings,
            cache=cache,
            device=options.chosen_device(device),
            engine=scoring.engine,
        )
        save_scores(out, scores)
    tell("The scores", out)


@app.command()
def report(run_folder: options.RunFolder) -> None:
    """Show a run's pictures beside the images they came from.

    Writes RUN/report.html, a page that needs no other file.
    """
    from dtrak.runs.run import Run

    opened = Run.open(run_folder)

    from dtrak.report import write_report

    tell("The report", write_report(opened))


@app.command()
@with_scoring
def serve(
    scoring: Scoring,
    run_folder: options.RunFolder,
    method: options.ServedMethods = None,
    damping: options.ServedDamping = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = None,
    no_browser: options.NoBrowser = False,
    device: options.Device = None,
) -> None:
    """Look around in a run, in a browser: who made each picture, what each training image did, for any damping.

    Also answers about pictures that you upload, or that it draws from a seed. Features that are not there yet are
    computed while you look. Pictures asked about are kept in RUN/asked.
    """
    from dtrak.explorer.address import listen
    from dtrak.runs.run import Run

    asked = scoring.asking_for(method, damping)
    opened, listening = Run.open(run_folder), listen(host, port)

    from dtrak.explorer.exploration import explore
    from dtrak.explorer.server import serve as serve_exploration

    exploration = explore(
        opened,
        options.chosen_device(device),
        methods=asked.methods,
        typed=asked.typed,
        cache=asked.cache,
        engine=asked.engine,
    )
    serve_exploration(exploration, host, listening, not no_browser)


@app.command()
def methods() -> None:
    """List the methods: what each is, needs and costs."""
    from dtrak.methods import METHODS

    table = Table(Column("method", no_wrap=True), "what it is", "needs", "costs", box=None, pad_edge=False)
    for one in METHODS.values():
        table.add_row(one.name, one.summary, one.needs, one.cost)
    output.print(table)


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Print this one.", show_default=False)] = None,
) -> None:
    """List the recipes, or print one, with what each line means, to start your own from."""
    from dtrak.runs.recipes import load_recipe, recipe_names, recipe_text

    if name is not None:
        load_recipe(name)  # whatever else lies there is not for printing
        show_yaml(recipe_text(name))
        return
    table = Table("recipe", "what it is", box=None, pad_edge=False)
    for one in recipe_names():
        table.add_row(one, load_recipe(one).summary)
    output.print(table)


@app.command()
def info() -> None:
    """Print versions, devices and cores, for a bug report."""
    import torch

    from dtrak.devices import devices
    from dtrak.runs.run import versions

    table = Table("", "", box=None, show_header=False, pad_edge=False)
    for name, value in versions().items():
        table.add_row(name, value)
    table.add_row("devices", ", ".join(devices()))
    table.add_row("cores", str(os.cpu_count()))
    table.add_row("threads", str(torch.get_num_threads()))
    output.print(table)


def silence_libraries() -> None:
    """Their warnings and logs speak to developers; what a user has to know is in dtrak's own errors."""
    warnings.simplefilter("ignore")
    logging.disable()
    if not sys.stderr.isatty():
        for library in ("HF_HUB", "HF_DATASETS"):
            os.environ.setdefault(f"{library}_DISABLE_PROGRESS_BARS", "1")


def main() -> None:
    """Run a command; whatever goes wrong is one line on standard error and an exit code."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    if not debug:
        silence_libraries()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may be no text
    try:
        with sigterm.ended_by_sigterm():
            code = app(arguments or ["--help"], prog_name="dtrak", standalone_mode=False)
        if code == INTERRUPTED:  # typer has caught it
            raise KeyboardInterrupt
    except (Exception, KeyboardInterrupt, SystemExit, sigterm.TerminatedError) as error:
        if debug:
            traceback.print_exc()
        code = ended_by(error)
    sys.exit(code)


def ended_by(error: BaseException) -> int:
    """Say in one line what has ended a command; gives the exit code."""
    if sigterm.was_received():  # whatever a library has made of it
        sigterm.print_message_once()
        return sigterm.TERMINATED
    code, message = explained(error)
    print(f"dtrak: {printable(' '.join(message.split()))}", file=sys.stderr)
    return code


def printable(line: str) -> str:
    """The same with \\x1b … for what a terminal would obey or cannot show."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in line)


def explained(error: BaseException) -> tuple[int, str]:
    """The exit code and the one line that an error comes to."""
    match error:
        case DtrakError():
            return error.exit_code, str(error)
        case typer.TyperException():
            return error.exit_code, f"{error.format_message().rstrip('.')} (--help tells more)"
        case OSError(filename=str(name), strerror=str(reason)):
            return 1, f"cannot use {name}: {reason}"
        case KeyboardInterrupt():
            return INTERRUPTED, "interrupted; the same command goes on where this one stopped"
        case _:
            return 1, f"{type(error).__name__}: {error} (--debug shows where)"
