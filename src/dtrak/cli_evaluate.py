"""`dtrak evaluate`: how far the scores can be trusted."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer

from dtrak import options
from dtrak.errors import UsageError
from dtrak.printing import show, tell

app = typer.Typer(help="Measure how far scores can be trusted.", rich_markup_mode=None)


@app.command()
@options.with_scoring
def lds(
    settings: dict[str, Any],
    run_folder: options.RunToRetrain = None,
    benchmark: options.Benchmark = None,
    method: options.EvaluatedMethods = "d-trak",
    queries: options.QueryKind = "validation",
    output_function: options.Output = "simple",
    damping: options.EvaluatedDamping = "chosen",
    grid: options.Grid = "log",
    out: options.LdsFile = None,
    table: options.TableFile = None,
    subsets: options.Subsets = 64,
    fraction: options.Fraction = 0.5,
    seeds: options.Seeds = 3,
    output_timesteps: options.OutputTimesteps = None,
    output_noises: options.OutputNoises = 3,
    validation_count: options.ValidationCount = 100,
    keep_models: options.KeepModels = False,
    device: options.Device = None,
) -> None:
    """Ask how well scores predict what models trained on random subsets do: the linear datamodelling score.

    For a run, retrains its model on random subsets and keeps what they make of the run's validation and generated
    images as RUN/benchmark; for --benchmark, takes a folder where that was done. Then scores the methods against it.
    """
    from dtrak.evaluation.tables import check_table_path
    from dtrak.files import check_writable
    from dtrak.methods import split_methods
    from dtrak.runs import Run

    if (run_folder is None) == (benchmark is None):
        raise UsageError("give a run to retrain or a --benchmark to read, one of the two")
    methods = split_methods(method)
    run = None if run_folder is None else Run.open(run_folder)
    out = run_folder / "lds.json" if out is None and run_folder is not None else out
    if table is not None:
        check_table_path(table)
    for path in (out, table):
        if path is not None:
            check_writable(path)

    from dtrak.benchmark import Benchmark
    from dtrak.evaluation.comparison import check_question, compare
    from dtrak.evaluation.retraining import RetrainingSettings
    from dtrak.files import write_text

    if "retrained" in settings:
        raise UsageError(f"--retrained {settings['retrained']}: methods learn from the benchmark's own models here")
    check_question(methods, queries, output_function, damping, grid, settings)
    engine = options.typed_engine(settings)
    if run is not None:
        from dtrak.engines import make_engine
        from dtrak.pipeline import benchmark_run, benchmark_settings, check_can_answer

        check_can_answer(run, queries, damping, subsets)
        retraining = RetrainingSettings(
            subsets=subsets,
            fraction=fraction,
            seeds=seeds,
            timesteps=output_timesteps,
            noises=output_noises,
            keep_models=keep_models,
        )
        where = options.chosen_device(device)
        made = benchmark_run(run, retraining, validation_count, engine or make_engine("pool"), where)
        settings = benchmark_settings(run, settings)
    elif benchmark is not None:
        made = Benchmark.open(benchmark)
    with kept_until_done(settings.pop("cache", None), out) as cache:
        found = compare(
            made,
            methods,
            cache,
            queries=queries,
            output=output_function,
            damping=damping,
            grid=grid,
            device=options.chosen_device(device),
            engine=engine,
            **settings,
        )
    show(found.table())
    if out is not None:
        write_text(out, found.json())
        tell("The numbers", out)
    if table is not None:
        from dtrak.evaluation.tables import write_table

        write_table(found.table(), table)
        tell("The table", table)


@contextmanager
def kept_until_done(cache: Path | None, out: Path | None) -> Iterator[Path]:
    """The folder that the user gave; or one beside the output, which a kill leaves there to go on from."""
    if cache is not None:
        yield cache
    elif out is not None:
        beside = out.with_name(f"{out.name}.features")
        yield beside
        shutil.rmtree(beside, ignore_errors=True)
    else:
        with TemporaryDirectory() as temporary:
            yield Path(temporary)


@app.command()
@options.with_scoring
def counterfactual(
    settings: dict[str, Any],
    run_folder: options.RunFolder,
    method: options.EvaluatedMethods = "random,trak,d-trak",
    count: options.QueryCount = None,
    remove: options.Remove = None,
    step: options.Steps = None,
    encoder: options.JudgingEncoder = None,
    damping: options.Damping = None,
    table: options.TableFile = None,
    device: options.Device = None,
) -> None:
    """Ask what becomes of a picture without the training images that scores say it came from.

    For each generated picture, retrains the run's model without its highest-scoring images and draws from the same
    seed again. Writes the distances between the two, boxplots and the pictures side by side into RUN/counterfactual.
    """
    from dtrak.evaluation.tables import check_table_path, write_table
    from dtrak.files import check_writable
    from dtrak.methods import split_methods
    from dtrak.runs import Run

    split_methods(method)
    steps = options.chosen_steps(step)
    opened = Run.open(run_folder)
    if table is not None:
        check_table_path(table)
        check_writable(table)

    from dtrak.engines import make_engine
    from dtrak.evaluation import counterfactual as evaluation
    from dtrak.pipeline import counterfactual_run

    engine = options.typed_engine(settings)
    question = evaluation.ask(opened, options.chosen_device(device), count, remove, steps)
    given = {"method": method, "encoder": encoder, "damping": damping}
    changes = settings | {name: value for name, value in given.items() if value is not None}
    if engine is not None:
        changes["engine"] = engine
    results = counterfactual_run(question, changes, engine or make_engine("pool"))
    shown = evaluation.table(results)
    show(shown)
    for result in results:
        tell("The numbers and figures", evaluation.folder_of(question, result.step))
    if table is not None:
        write_table(shown, table)
        tell("The table", table)
