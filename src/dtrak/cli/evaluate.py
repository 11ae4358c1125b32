"""`dtrak evaluate`: how far the scores can be trusted."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dtrak.cli import options
from dtrak.cli import options_evaluate as asked
from dtrak.cli.scoring import Scoring, with_scoring
from dtrak.errors import UsageError
from dtrak.printing import show, tell

if TYPE_CHECKING:
    from dtrak.engines import Engine
    from dtrak.inputs.benchmark import Benchmark
    from dtrak.runs.run import Run
    from dtrak.tables import Table

app = typer.Typer(help="Measure how far scores can be trusted.", rich_markup_mode=None)


@app.command()
@with_scoring
def lds(
    scoring: Scoring,
    run_folder: asked.RunToRetrain = None,
    benchmark: asked.Benchmark = None,
    method: options.Method = None,
    queries: asked.QueryKind = "validation",
    output_function: asked.Output = "simple",
    damping: asked.EvaluatedDamping = "chosen",
    grid: asked.Grid = "log",
    out: asked.LdsFile = None,
    table: asked.TableFile = None,
    subsets: asked.Subsets = None,
    fraction: asked.Fraction = None,
    seeds: asked.Seeds = None,
    output_timesteps: asked.OutputTimesteps = None,
    output_noises: asked.OutputNoises = None,
    validation_count: asked.ValidationCount = None,
    keep_models: asked.KeepModels = None,
    device: options.Device = None,
) -> None:
    """Ask how well scores predict what models trained on random subsets do: the linear datamodelling score.

    For a run, retrains its model on random subsets and keeps what they make of the run's validation and generated
    images as RUN/benchmark; for --benchmark, takes a folder where that was done. Then scores the methods against it.
    """
    from dtrak.runs.run import Run

    if (run_folder is None) == (benchmark is None):
        raise UsageError("give a run to retrain or a --benchmark to read, one of the two")
    retraining = {
        "subsets": subsets,
        "fraction": fraction,
        "seeds": seeds,
        "timesteps": output_timesteps,
        "noises": output_noises,
        "validation": validation_count,
        "keep_models": keep_models,
    }
    retraining = {name: value for name, value in retraining.items() if value is not None}
    if benchmark is not None and retraining:
        raise UsageError(f"--benchmark {benchmark} is read as it is: its {next(iter(retraining))} cannot be chosen")
    run = None if run_folder is None else Run.open(run_folder)
    recipe = None if run is None else run.recipe.attribution
    scoring = scoring.asking_for(method, None)
    methods = scoring.method_names(scoring.settings(recipe), None if recipe is None else recipe.method)
    out = run_folder / "lds.json" if out is None and run_folder is not None else out
    _check_files(out, table)

    from dtrak.evaluation.comparison import check_question, compare
    from dtrak.evaluation.of_runs import benchmark_features_folder, keep_comparison
    from dtrak.files import kept_until_done, write_text
    from dtrak.inputs.benchmark import Benchmark
    from dtrak.runs.attributing import settings_of

    if "retrained" in scoring.typed:
        given = scoring.typed["retrained"]
        raise UsageError(f"--retrained {given}: methods learn from the benchmark's own models here")
    settings, where = scoring.settings(None if run is None else settings_of(run)), options.chosen_device(device)
    check_question(methods, queries, output_function, damping, grid, settings)
    keeps = scoring.cache
    if run is not None:
        made = _retrained(run, retraining, queries, damping, scoring.engine, where)
        keeps = keeps or benchmark_features_folder(run, settings)
    elif benchmark is not None:
        made = Benchmark.open(benchmark)
    with kept_until_done(keeps, out) as cache:
        found = compare(
            made,
            methods,
            cache,
            settings,
            queries=queries,
            output=output_function,
            damping=damping,
            grid=grid,
            device=where,
            engine=scoring.engine,
        )
        if run is not None:
            keep_comparison(run, found)
        if out is not None:
            write_text(out, found.json())
    _show(found.table(), table, "The numbers", [] if out is None else [out])


@app.command()
@with_scoring
def counterfactual(
    scoring: Scoring,
    run_folder: options.RunFolder,
    method: asked.EvaluatedMethods = "random,trak,d-trak",
    count: asked.QueryCount = None,
    remove: asked.Remove = None,
    step: asked.Steps = None,
    encoder: asked.JudgingEncoder = None,
    damping: options.Damping = None,
    table: asked.TableFile = None,
    device: options.Device = None,
) -> None:
    """Ask what becomes of a picture without the training images that scores say it came from.

    For each generated picture, retrains the run's model without its highest-scoring images and draws from the same
    seed again. Writes the distances between the two, boxplots and the pictures side by side into RUN/counterfactual.
    """
    from dtrak.runs.run import Run

    steps = asked.chosen_steps(step)
    opened = Run.open(run_folder)
    scoring = scoring.asking_for(method, damping)
    recipe = scoring.settings(opened.recipe.attribution)
    methods = scoring.method_names(recipe)
    _check_files(None, table)

    from dtrak.engines import make_engine
    from dtrak.evaluation import counterfactual as evaluation
    from dtrak.evaluation.of_runs import counterfactual_run
    from dtrak.evaluation.redrawing import choose_pictures
    from dtrak.report.figures.counterfactual import save_counterfactual_figures
    from dtrak.runs.attributing import settings_of

    redrawn = choose_pictures(opened, options.chosen_device(device), count, remove, steps)
    settings = scoring.settings(settings_of(opened))
    results = counterfactual_run(
        redrawn,
        methods,
        settings if encoder is None else replace(settings, encoder=encoder),
        scoring.engine or make_engine("pool"),
        cache=scoring.cache,
        gradient_engine=scoring.engine,
    )
    folders = [evaluation.folder_of(redrawn, result.step) for result in results]
    for result, folder in zip(results, folders, strict=True):
        save_counterfactual_figures(result, folder)
    _show(evaluation.table(results), table, "The numbers and figures", folders)


def _retrained(
    run: "Run", typed: dict[str, Any], queries: str, damping: str, engine: "Engine | None", device: str
) -> "Benchmark":
    """The run's benchmark; what was not typed is as it was when it was begun, or as the run's recipe says."""
    from dtrak.engines import make_engine
    from dtrak.evaluation.of_runs import benchmark_run, check_can_answer
    from dtrak.evaluation.retraining import RetrainingSettings
    from dtrak.runs.run import BENCHMARK

    settings = RetrainingSettings.resumed(run.folder / BENCHMARK, run.recipe.evaluation, typed)
    check_can_answer(run, queries, damping, settings.subsets)
    return benchmark_run(run, settings, engine or make_engine("pool"), device)


def _check_files(out: Path | None, table: Path | None) -> None:
    """Refuse, before hours of work, what could not be written in the end."""
    from dtrak.files import check_writable
    from dtrak.tables import check_table_path

    if table is not None:
        check_table_path(table)
        if out is not None and out.resolve() == table.resolve():
            raise UsageError(f"--out and --table both name {out}: give them a file each")
    for path in (out, table):
        if path is not None:
            check_writable(path)


def _show(found: "Table", path: Path | None, what: str, kept: Sequence[Path]) -> None:
    """Print a table, write it to a path that was asked for, and say where the rest was kept."""
    from dtrak.tables import write_table

    show(found)
    for each in kept:
        tell(what, each)
    if path is not None:
        write_table(found, path)
        tell("The table", path)
