"""The commands `dtrak evaluate …`, which measure how far scores can be trusted."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dtrak.cli import options, options_evaluate
from dtrak.cli.credit import Highest
from dtrak.cli.help import GroupedCommand
from dtrak.cli.scoring import Address, EngineName, Scoring, Workers, engine_of, with_scoring
from dtrak.errors import UsageError
from dtrak.tables import Table, check_table_path, show, tell, write_table

if TYPE_CHECKING:
    from dtrak.attribution.benchmark_folder import Benchmark
    from dtrak.engines import Engine
    from dtrak.runs.run import Run

app = typer.Typer(help="Measure how far scores can be trusted.", rich_markup_mode=None)


@app.command(cls=GroupedCommand)
@with_scoring
def lds(
    scoring: Scoring,
    run_folder: options_evaluate.RunToRetrain = None,
    benchmark: options_evaluate.Benchmark = None,
    method: options.Method = None,
    queries: options_evaluate.QueryKind = "validation",
    output_function: options_evaluate.Output = "simple",
    damping: options_evaluate.EvaluatedDamping = "auto",
    grid: options_evaluate.Grid = "log",
    out: options_evaluate.LdsFile = None,
    table: options_evaluate.TableFile = None,
    subsets: options_evaluate.Subsets = None,
    fraction: options_evaluate.Fraction = None,
    seeds: options_evaluate.Seeds = None,
    output_timesteps: options_evaluate.OutputTimesteps = None,
    output_noises: options_evaluate.OutputNoises = None,
    validation_count: options_evaluate.ValidationCount = None,
    keep_models: options_evaluate.KeepModels = None,
    checkpoint: options.Checkpoint = None,
    device: options.Device = None,
) -> None:
    """Measure how well scores predict retrained models (LDS).

    The linear datamodelling score (LDS) compares summed scores with the losses of models that are trained on subsets.
    Give a run: its model is retrained on random subsets, and the losses of its validation and generated images are kept
    in RUN/benchmark. Or give --benchmark, such a folder from before. Then the LDS of each method is computed.

    Methods that learn from retrained models learn from those of --retrained, or of RUN/retrained, which `dtrak evaluate
    retrain` makes. Without them, they learn from half of the benchmark's models, and the LDS is of the other half.
    """
    from dtrak.runs.run import Run

    if (run_folder is None) == (benchmark is None):
        raise UsageError("give a run to retrain or a --benchmark to read, one of the two")
    retraining = _typed(subsets, fraction, seeds, output_timesteps, output_noises, validation_count, keep_models)
    if benchmark is not None and retraining:
        raise UsageError(f"--benchmark {benchmark} is only read: its {next(iter(retraining))} cannot be changed")
    run = None if run_folder is None else Run.open(run_folder)
    recipe = None if run is None else run.recipe.attribution
    scoring = scoring.asking_for(method, None)
    usual = None if recipe is None else recipe.method
    out = run_folder / "lds.json" if out is None and run_folder is not None else out
    _check_files(out, table)

    from dtrak.attribution.benchmark_folder import Benchmark
    from dtrak.evaluation.comparison import check_comparison, compare, save_comparison
    from dtrak.files import kept_until_done, write_text
    from dtrak.runs.run_questions import settings_of

    earlier = options_evaluate.chosen_checkpoint(run, checkpoint)
    settings, chosen_device = scoring.settings(None if run is None else settings_of(run)), options.chosen_device(device)
    methods = scoring.chosen(settings, usual)
    asked = ["all"] if scoring.every(usual) else methods
    check_comparison(methods, queries, output_function, damping, grid, settings)
    if "retrained" in scoring.typed:
        Benchmark.open(scoring.typed["retrained"])  # so that a wrong folder is refused before models are retrained
    features_folder = scoring.cache
    if run is not None:
        opened = _benchmark_of(run, retraining, queries, damping, scoring.engine, chosen_device)
        features_folder = features_folder or run.features
    elif benchmark is not None:
        opened = Benchmark.open(benchmark)
    with kept_until_done(features_folder, out) as cache:
        comparison = compare(
            opened,
            asked,
            cache,
            settings,
            model=earlier,
            queries=queries,
            output=output_function,
            damping=damping,
            grid=grid,
            device=chosen_device,
            engine=scoring.engine,
        )
        if run is not None:
            save_comparison(run, comparison)
        if out is not None:
            write_text(out, comparison.json())
    _show(comparison.table(), table, "The numbers", [] if out is None else [out])


@app.command(cls=GroupedCommand)
def retrain(
    run_folder: options.RunFolder,
    subsets: options_evaluate.Subsets = None,
    fraction: options_evaluate.Fraction = None,
    seeds: options_evaluate.SeedsOfOthers = None,
    output_timesteps: options_evaluate.OutputTimesteps = None,
    output_noises: options_evaluate.OutputNoises = None,
    validation_count: options_evaluate.ValidationCount = None,
    keep_models: options_evaluate.KeepModels = None,
    engine: EngineName = None,
    workers: Workers = None,
    address: Address = None,
    device: options.Device = None,
) -> None:
    """Retrain a run's model for methods that learn from it.

    Ensembles, empirical influence and datamodels need models that were retrained on random subsets. This command makes
    RUN/retrained, of other subsets than RUN/benchmark. `dtrak evaluate lds RUN` and `dtrak attribute RUN` then use it.
    """
    from dtrak.runs.run import RETRAINED, Run

    opened = Run.open(run_folder)
    typed = _typed(subsets, fraction, seeds, output_timesteps, output_noises, validation_count, keep_models)

    from dtrak.engines import make_engine
    from dtrak.evaluation.benchmark_making import OTHER_SUBSETS, RetrainingSettings, make_benchmark, queries_of

    settings = RetrainingSettings.resumed(run_folder / RETRAINED, opened.recipe.evaluation, typed, OTHER_SUBSETS)
    where = engine_of(engine, workers, address) or make_engine("pool")
    folder, queries = run_folder / RETRAINED, queries_of(opened, settings)
    made = make_benchmark(opened, folder, settings, where, queries, options.chosen_device(device))
    tell("The retrained models' losses", made.folder)


@app.command(cls=GroupedCommand)
@with_scoring
def counterfactual(
    scoring: Scoring,
    run_folder: options.RunFolder,
    method: options_evaluate.EvaluatedMethods = "random,trak,d-trak",
    count: options_evaluate.QueryCount = None,
    remove: options_evaluate.Remove = None,
    step: options_evaluate.Steps = None,
    encoder: options_evaluate.JudgingEncoder = None,
    damping: options.Damping = None,
    table: options_evaluate.TableFile = None,
    device: options.Device = None,
) -> None:
    """Measure how pictures change without their top images.

    For each generated picture, the run's model is retrained without the highest-scoring training images and draws from
    the same seed again. The distances between the two pictures, boxplots and the pictures side by side are written into
    RUN/counterfactual.
    """
    from dtrak.runs.run import Run

    steps = options_evaluate.chosen_steps(step)
    opened = Run.open(run_folder)
    scoring = scoring.asking_for(method, damping)
    _check_files(None, table)

    from dtrak.engines import make_engine
    from dtrak.evaluation import counterfactual as evaluation
    from dtrak.evaluation.counterfactual import counterfactual_run
    from dtrak.report.run_figures import save_counterfactual_figures
    from dtrak.runs.run_questions import settings_of

    redrawing = evaluation.choose_pictures(opened, options.chosen_device(device), count, remove, steps)
    settings = scoring.settings(settings_of(opened))
    methods = scoring.chosen(settings)
    results = counterfactual_run(
        redrawing,
        methods,
        settings if encoder is None else replace(settings, encoder=encoder),
        scoring.engine or make_engine("pool"),
        cache=scoring.cache,
        gradient_engine=scoring.engine,
    )
    folders = [redrawing.folder(result.step) for result in results]
    for result, folder in zip(results, folders, strict=True):
        save_counterfactual_figures(result, folder)
    _show(evaluation.table(results), table, "The numbers and figures", folders)


@app.command(cls=GroupedCommand)
@with_scoring
def credit(
    scoring: Scoring,
    run_folder: options.RunFolder,
    by: options_evaluate.LeftOutBy = "artist",
    queries: options_evaluate.QueryKind = "generated",
    method: options.Method = None,
    highest: Highest = None,
    seeds: options_evaluate.Seeds = None,
    damping: options.Damping = None,
    out: options_evaluate.CreditFile = None,
    table: options_evaluate.TableFile = None,
    device: options.Device = None,
) -> None:
    """Measure how well credit predicts leaving artists out.

    The run's model is retrained without all images of each artist, and once on all images, with several seeds. The
    losses of the run's queries, and the pictures drawn again, tell how much each artist matters. Then the credit of
    each method is compared with that. The trainings are kept in RUN/trainings.
    """
    from dtrak.runs.run import Run

    opened = Run.open(run_folder)
    scoring = scoring.asking_for(method, damping)
    out = run_folder / "credit.json" if out is None else out
    _check_files(out, table)

    from dtrak.engines import make_engine
    from dtrak.evaluation.benchmark_making import RetrainingSettings, check_queries
    from dtrak.evaluation.left_out import credit_run
    from dtrak.files import write_json
    from dtrak.runs.run import BENCHMARK
    from dtrak.runs.run_questions import settings_of

    check_queries(opened, queries)
    # The queries, and the noise of their losses, are those of the run's benchmark.
    typed = {} if seeds is None else {"seeds": seeds}
    retraining = RetrainingSettings.resumed(opened.folder / BENCHMARK, opened.recipe.evaluation, typed)
    settings = scoring.settings(settings_of(opened))
    comparison = credit_run(
        opened,
        by,
        queries,
        scoring.chosen(settings, opened.usual_method),
        settings,
        retraining,
        scoring.engine or make_engine("pool"),
        options.chosen_device(device),
        highest=highest,
        cache=scoring.cache,
        gradient_engine=scoring.engine,
    )
    write_json(out, comparison.json())
    _show(comparison.table(), table, "The numbers", [out])


def _typed(
    subsets: int | None,
    fraction: float | None,
    seeds: int | None,
    output_timesteps: str | None,
    output_noises: int | None,
    validation_count: int | None,
    keep_models: bool | None,
) -> dict[str, Any]:
    """Return the fields of `RetrainingSettings` that were typed."""
    given = {
        "subsets": subsets,
        "fraction": fraction,
        "seeds": seeds,
        "timesteps": output_timesteps,
        "noises": output_noises,
        "validation": validation_count,
        "keep_models": keep_models,
    }
    return {name: value for name, value in given.items() if value is not None}


def _benchmark_of(
    run: "Run", typed: dict[str, Any], queries: str, damping: str, engine: "Engine | None", device: str
) -> "Benchmark":
    """Make or continue the run's benchmark.

    A setting that was not typed keeps the value that the benchmark was begun with; that of a new one is the recipe's.
    """
    from dtrak.engines import make_engine
    from dtrak.evaluation.benchmark_making import RetrainingSettings, check_queries, make_benchmark, queries_of
    from dtrak.evaluation.comparison import CHOSEN, MIN_SUBSETS
    from dtrak.runs.run import BENCHMARK

    settings = RetrainingSettings.resumed(run.folder / BENCHMARK, run.recipe.evaluation, typed)
    check_queries(run, queries)
    if damping == CHOSEN and settings.subsets < 2 * MIN_SUBSETS:
        said = "too few to choose the damping on one half and report on the other"
        raise UsageError(f"subsets {settings.subsets}: {said}")
    folder, asked = run.folder / BENCHMARK, queries_of(run, settings)
    return make_benchmark(run, folder, settings, engine or make_engine("pool"), asked, device)


def _check_files(out: Path | None, table: Path | None) -> None:
    """Refuse files that cannot be written, before hours of work."""
    from dtrak.files import check_writable

    if table is not None:
        check_table_path(table)
        if out is not None and out.resolve() == table.resolve():
            raise UsageError(f"--out and --table both name {out}: give two different files")
    for path in (out, table):
        if path is not None:
            check_writable(path)


def _show(table: "Table", table_path: Path | None, title: str, written: Sequence[Path]) -> None:
    """Print a table and the paths that were written, and write the table to `table_path` if one is given."""

    show(table)
    for path in written:
        tell(title, path)
    if table_path is not None:
        write_table(table, table_path)
        tell("The table", table_path)
