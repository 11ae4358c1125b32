"""The commands of `dtrak`: each parses its options, calls the package and prints the result.

Modules that take long to import are imported inside the commands that need them.
"""

import io
import logging
import os
import signal
import sys
import traceback
import warnings
from pathlib import Path

import typer

from dtrak.cli import evaluate, look, options
from dtrak.cli.credit import credit
from dtrak.cli.endings import INTERRUPTED, ended_by
from dtrak.cli.help import GroupedCommand, InOrder
from dtrak.cli.index import index, search
from dtrak.cli.plan import plan
from dtrak.cli.scoring import Scoring, with_scoring
from dtrak.errors import UsageError
from dtrak.tables import show, tell

app = typer.Typer(cls=InOrder, rich_markup_mode=None)
app.add_typer(evaluate.app, name="evaluate")


@app.callback(epilog="For a first look, in seconds: dtrak demo --ready. To try everything, in minutes: dtrak demo")
def start(debug: options.Debug = False) -> None:
    """Which training images made this picture? Attribution for diffusion models.

    Every long command can be interrupted or killed. Run again, it continues where it stopped.
    """


@app.command(cls=GroupedCommand)
def demo(
    out: options.DemoRun = None,
    ready: options.Ready = False,
    port: options.Port = None,
    no_browser: options.NoBrowser = False,
    device: options.Device = None,
) -> None:
    """Try everything on small images of digits, in minutes.

    The command trains a small model, draws digits with it, scores the training digits for each of them, and writes the
    result to RUN/report.html. With --ready, it trains nothing: it opens the explorer on a run that comes with the
    package, in seconds.
    """
    if not ready:
        run("digits", out or Path("runs/digits"), device)
        return

    from dtrak.runs.ready import ready_run

    folder = out or Path("runs/ready")
    ready_run(folder)
    _serve(folder, Scoring({}), "127.0.0.1", port, not no_browser, device)


@app.command(cls=GroupedCommand)
def run(
    recipe: options.Recipe,
    out: options.NamedRun = None,
    device: options.Device = None,
    scale: options.Scale = None,
    train_source: options.TrainOverride = None,
    validation: options.ValidationOverride = None,
    base: options.BaseOverride = None,
    dry_run: options.DryRun = False,
) -> None:
    """Train, generate, attribute and report, as a recipe says."""
    from dtrak.runs.recipes import load_recipe

    loaded = load_recipe(recipe, scale, options.recipe_changes(train_source, validation, base))
    folder = out or loaded.folder
    if dry_run:
        from dtrak.evaluation.cost import plan as plan_of

        show(plan_of(loaded, folder, options.chosen_device(device)))
        return

    from dtrak.cli.whole_run import run_all

    tell("The report", run_all(folder, loaded, options.chosen_device(device)))


@app.command(cls=GroupedCommand)
def train(
    recipe: options.Recipe,
    out: options.NewRun,
    subset: options.Subset = None,
    device: options.Device = None,
) -> None:
    """Train a model on a recipe's images.

    The command writes RUN/model, in diffusers' layout, and RUN/checkpoints.
    """
    from dtrak.runs.recipes import load_recipe
    from dtrak.runs.run import Run

    loaded = load_recipe(recipe)
    wanted = Run(out, loaded if subset is None else loaded.with_subset(subset))
    if not wanted.is_trained:
        from dtrak.evaluation.cost import check_run

        check_run(wanted, options.chosen_device(device))
    started = Run.create(out, loaded, subset)
    if started.is_trained:
        tell("The model is trained already", out / "model")
        return

    from dtrak.runs.training import train as train_model

    train_model(started, options.chosen_device(device))
    tell("The model", out / "model")


@app.command(cls=GroupedCommand)
def generate(
    run_folder: options.RunFolder,
    count: options.Count = None,
    seed: options.FirstSeed = None,
    prompt: options.Prompt = None,
    device: options.Device = None,
) -> None:
    """Draw pictures with a run's model.

    The command writes RUN/generated, which then holds these N pictures and no others.
    """
    from dtrak.runs.run import Run

    opened = Run.open(run_folder)
    recipe = opened.generation
    model = opened.model().to(options.chosen_device(device))

    from dtrak.runs.drawing import generate as generate_pictures

    first = recipe.seed if seed is None else seed
    generate_pictures(opened, model, count or recipe.count, first, recipe.steps, prompt)
    tell("The pictures", run_folder / "generated")


@app.command(cls=GroupedCommand)
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
    precision: options.Precision = None,
    new_run: options.RunOfModel = None,
    checkpoint: options.Checkpoint = None,
    damping: options.Damping = None,
    top: options.Top = None,
    shard: options.Shard = None,
    device: options.Device = None,
) -> None:
    """Score every training image for every picture.

    Give a run: its recipe decides everything that no option sets, and it keeps the scores for its report. Or give a
    model that was trained elsewhere, with --model, --train, --queries and --out or --run.

    IMAGES are digits:train, digits:validation, a folder, an .npz file, an image, hf:name:split, or parquet:files.
    """
    scoring = scoring.asking_for(method, damping, top)
    if shard is not None:
        from dtrak.cli.share import fill_features

        where = options.chosen_device(device)
        fill_features(run_folder, (model, lora, prompt), train_source, size, scoring, shard, where)
        return
    if run_folder is not None:
        if any(one is not None for one in (model, lora, prompt, train_source, size, precision, new_run)):
            raise UsageError(
                f"give a run ({run_folder}), or --model and --train (and --lora, --prompt, --size), not both"
            )
        _attribute_run(run_folder, queries, out, checkpoint, scoring, device)
        return
    if checkpoint is not None or model is None or train_source is None or queries is None or not (out or new_run):
        raise UsageError(
            "give a run, or all of --model, --train, --queries and --out or --run (--checkpoint is for runs)"
        )
    from dtrak.cli.elsewhere import Given, attribute_model

    given = Given(model, lora, prompt, precision, train_source, queries, size)
    attribute_model(given, out, new_run, scoring, device)


def _attribute_run(
    run_folder: Path, queries: str | None, out: Path | None, typed: str | None, scoring: Scoring, device: str | None
) -> None:
    """Attribute a run, or the checkpoint of it that was typed."""
    from dtrak.files import check_not_read, check_writable
    from dtrak.runs.run import Run

    opened = Run.open(run_folder)
    source = queries or str(run_folder / "generated")
    if queries is None and not Path(source).exists():
        raise UsageError(
            f"{run_folder} has no generated pictures yet: `dtrak generate {run_folder}` draws some, or give --queries"
        )
    checkpoint = None if typed is None else opened.checkpoint(typed)
    own = run_folder / "scores.npz"
    out = out or own
    if checkpoint is not None and out.resolve() == own.resolve():
        raise UsageError(f"--checkpoint {typed}: give another file as --out, as {own} is of the final model")
    check_not_read(out, source, str(opened.train_source.source), run_folder / "recipe.yaml")
    check_writable(out)

    from dtrak.attribution.answer import answer
    from dtrak.attribution.scores import save_scores
    from dtrak.runs.run_questions import attribute_run, opened_run, question_of, settings_of

    settings, usual = scoring.settings(settings_of(opened)), opened.usual_method
    methods = scoring.chosen(settings, usual)
    opened.check_trained()
    question = question_of(opened, opened.query_source(source), methods, settings, checkpoint)
    where = options.chosen_device(device)
    every = scoring.every(usual)
    if checkpoint is None:
        scores = attribute_run(
            opened,
            question,
            top=scoring.top,
            cache=scoring.cache,
            device=where,
            engine=scoring.engine,
            every=every,
        )
    else:  # the run keeps the scores of its final model alone
        of_checkpoint = opened_run(
            opened, question, cache=scoring.cache, device=where, engine=scoring.engine, every=every, one_damping=True
        )
        scores = answer(of_checkpoint, scoring.top)
    if out != own:
        save_scores(out, scores)
    tell("The scores", out)


app.command(cls=GroupedCommand)(credit)
app.command(cls=GroupedCommand)(index)
app.command(cls=GroupedCommand)(search)
app.command(cls=GroupedCommand)(plan)


@app.command(cls=GroupedCommand)
def report(run_folder: options.RunFolder) -> None:
    """Write a page that shows the scores of a run.

    The page is RUN/report.html, which needs no other file. It shows the run's pictures beside their highest-scoring
    training images.
    """
    from dtrak.runs.run import Run

    opened = Run.open(run_folder)

    from dtrak.report import write_report

    tell("The report", write_report(opened))


@app.command(cls=GroupedCommand)
@with_scoring
def serve(
    scoring: Scoring,
    run_folder: options.RunOrIndex,
    method: options.ServedMethods = None,
    damping: options.ServedDamping = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = None,
    no_browser: options.NoBrowser = False,
    device: options.Device = None,
) -> None:
    """Explore the scores of a run, or ask an index, in a browser.

    The page shows the scores of each picture and of each training image, for any damping. You can also upload a
    picture, or have one drawn from a seed, and see its scores; such pictures are kept in RUN/asked. Missing features
    are computed in the background. An index finds the strongest training images of pictures that you upload.
    """
    from dtrak.attribution.index import FILE

    if (run_folder / FILE).is_file():
        _serve_index(run_folder, scoring.asking_for(method, damping), host, port, not no_browser, device)
        return
    _serve(run_folder, scoring.asking_for(method, damping), host, port, not no_browser, device)


def _serve(
    run_folder: Path, scoring: Scoring, host: str, port: int | None, open_browser: bool, device: str | None
) -> None:
    from dtrak.explorer.exploration import explore
    from dtrak.explorer.run_pages import RunPages
    from dtrak.explorer.server import listen
    from dtrak.explorer.server import serve as serve_pages
    from dtrak.runs.run import Run

    opened, listening = Run.open(run_folder), listen(host, port)

    exploration = explore(
        opened,
        options.chosen_device(device),
        methods=scoring.methods,
        typed=scoring.typed,
        cache=scoring.cache,
        engine=scoring.engine,
    )
    serve_pages(RunPages(exploration), host, listening, open_browser)


def _serve_index(
    folder: Path, scoring: Scoring, host: str, port: int | None, open_browser: bool, device: str | None
) -> None:
    from dtrak.attribution.index import Index
    from dtrak.explorer.index_pages import IndexPages
    from dtrak.explorer.server import listen
    from dtrak.explorer.server import serve as serve_pages

    if scoring.typed or scoring.methods or scoring.cache or scoring.engine:
        raise UsageError(f"{folder} is an index, whose settings are fixed: leave out the options of scoring")
    opened, listening = Index.open(folder), listen(host, port)
    serve_pages(IndexPages(opened, options.chosen_device(device)), host, listening, open_browser)


for command in (look.methods, look.recipes, look.info, look.figure, look.card):
    app.command(cls=GroupedCommand)(command)


def silence_libraries() -> None:
    """Turn off the warnings and logs of libraries: they are for developers, and users get dtrak's error messages."""
    warnings.simplefilter("ignore")
    logging.disable()
    if not sys.stderr.isatty():
        for library in ("HF_HUB", "HF_DATASETS"):
            os.environ.setdefault(f"{library}_DISABLE_PROGRESS_BARS", "1")


def main() -> None:
    """Run a command; an error becomes one line on standard error and an exit code."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    if not debug:
        silence_libraries()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the name of a file may not be valid text
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends a command as Ctrl-C does
        code = app(arguments or ["--help"], prog_name="dtrak", standalone_mode=False)
        if code == INTERRUPTED:  # typer has caught the KeyboardInterrupt
            raise KeyboardInterrupt
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if debug:
            traceback.print_exc()
        is_success = isinstance(error, SystemExit) and not error.code  # as after --show-completion
        code = 0 if is_success else ended_by(error)
    sys.exit(code)
