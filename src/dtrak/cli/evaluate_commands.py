"""The commands `dtrak evaluate …`, which measure how far scores can be trusted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

from cyclopts import Group, Parameter

from dtrak.attribution.benchmark_folder import Benchmark
from dtrak.checks import shortened
from dtrak.cli.shared_options import (
    DIGITS,
    HERE,
    NOTHING,
    Cache,
    Checkpoint,
    Device,
    Highest,
    Methods,
    Place,
    RunFolder,
    Typed,
    TypedWithoutDamping,
    TypedWithoutStep,
    Workers,
    asked_for,
    fastest,
    option,
    whole,
)
from dtrak.engines import make_engine
from dtrak.errors import UsageError
from dtrak.evaluation import counterfactual as redrawn
from dtrak.evaluation.benchmark_making import (
    OTHER_SUBSETS,
    RetrainingSettings,
    check_queries,
    make_benchmark,
    queries_of,
)
from dtrak.evaluation.comparison import CHOSEN, MIN_SUBSETS, check_comparison, compare, save_comparison
from dtrak.evaluation.counterfactual import counterfactual_run
from dtrak.evaluation.left_out import credit_run
from dtrak.files import check_writable, kept_until_done, write_json, write_text
from dtrak.methods import EVERY_METHOD
from dtrak.report.run_figures import save_counterfactual_figures
from dtrak.runs.run import BENCHMARK, RETRAINED, Run, holds_model
from dtrak.runs.run_questions import settings_of
from dtrak.tables import Table as Numbers
from dtrak.tables import check_table_path, show, tell, write_table

POOL = make_engine("pool")
QueryKind = Annotated[str, option("KIND", "The benchmark's set of queries: validation or generated.", name="--queries")]
Table = Annotated[Place | None, option("FILE", "Write the table here: .txt, .csv, .md or .tex.")]
Seeds = Annotated[
    int,
    option(
        "S",
        "How many models to train on each subset, with different seeds; `retrain` trains one.",
        "3",
        whole(1, "seeds"),
    ),
]


class Retraining(TypedDict, total=False):
    """The fields of `RetrainingSettings` that are typed."""

    subsets: Annotated[int, option("M", "How many random subsets to retrain on.", "64", whole(1, "subsets"))]
    fraction: Annotated[float, option("α", "The fraction of the training images in each subset.", "0.5")]
    seeds: Seeds
    timesteps: Annotated[
        str,
        option(
            "K",
            "The timesteps that losses are averaged over, written as --timesteps.",
            "all",
            name="--output-timesteps",
        ),
    ]
    noises: Annotated[
        int,
        option(
            "Z",
            "The noises at each of these timesteps that losses are averaged over.",
            "3",
            whole(1, "noises"),
            name="--output-noises",
        ),
    ]
    validation: Annotated[
        int,
        option(
            "N", "How many validation images are queries.", "100", whole(1, "validation"), name="--validation-count"
        ),
    ]
    keep_models: Annotated[bool, Parameter(help="Keep the retrained models, which ensembles need.")]


TypedRetraining = Annotated[Retraining, Parameter("*", group=Group("How models are retrained", sort_key=2))]
AS_BEFORE: Retraining = {}


def lds(
    run_folder: Annotated[
        Path | None, Parameter("RUN", help="The folder of a run, whose model is retrained; or give --benchmark.")
    ] = None,
    /,
    *,
    benchmark: Annotated[Place | None, option("FOLDER", "A benchmark folder to read, instead of a run.")] = None,
    method: Methods = None,
    queries: QueryKind = "validation",
    output_function: Annotated[
        str, option("NAME", "The objective that scores should predict: simple, or any other.")
    ] = "simple",
    damping: Annotated[
        str,
        option(
            "λ",
            "A fixed one: auto, spectrum, 0.1, absolute:5; chosen: fitted on half of the subsets and used for the "
            "other half; or best: fitted on the reported subsets, as in the paper.",
        ),
    ] = "auto",
    grid: Annotated[
        str,
        option(
            "NAME",
            "The dampings that chosen and best try: log, two for each power of ten; or paper, those of the paper, "
            "each divided by k, as the paper's random matrix is not divided by √k.",
        ),
    ] = "log",
    out: Annotated[
        Place | None, option("LDS.json", "Where to write the LDS of every method and query.", "RUN/lds.json")
    ] = None,
    table: Table = None,
    checkpoint: Checkpoint = None,
    retraining: TypedRetraining = AS_BEFORE,
    typed: TypedWithoutDamping = NOTHING,
    cache: Cache = None,
    workers: Workers = HERE,
    device: Device = None,
) -> None:
    """Measure how well scores predict retrained models (LDS).

    The linear datamodelling score (LDS) compares summed scores with the losses of models that are trained on subsets.
    Give a run: its model is retrained on random subsets, and the losses of its validation and generated images are kept
    in RUN/benchmark. Or give --benchmark, such a folder from before. Then the LDS of each method is computed.

    Methods that learn from retrained models learn from those of --retrained, or of RUN/retrained, which `dtrak evaluate
    retrain` makes. Without them, they learn from half of the benchmark's models, and the LDS is of the other half.
    """
    if (run_folder is None) == (benchmark is None):
        raise UsageError("give a run to retrain or a --benchmark to read, one of the two")
    if benchmark is not None and retraining:
        raise UsageError(f"--benchmark {benchmark} is only read: its {next(iter(retraining))} cannot be changed")
    run = None if run_folder is None else Run.open(run_folder)
    usual = None if run is None else run.recipe.attribution.method
    out = run_folder / "lds.json" if out is None and run_folder is not None else out
    _check_files(out, table)
    if run is not None:
        earlier = None if checkpoint is None else run.checkpoint(checkpoint)
    else:
        earlier = None if checkpoint is None else Path(checkpoint)
        if earlier is not None and not holds_model(earlier):
            raise UsageError(f"checkpoint {checkpoint}: there is no model in this folder")
    settings, methods, every = asked_for(typed, method, None if run is None else settings_of(run), usual)
    check_comparison(methods, queries, output_function, damping, grid, settings)
    if (given := typed.get("retrained")) is not None:
        Benchmark.open(given)  # so that a wrong folder is refused before models are retrained
    engine, device = workers.chosen(), fastest(device)
    if run is not None:
        # A setting that was not typed is that with which the benchmark was begun, or the recipe's.
        found = RetrainingSettings.resumed(run.folder / BENCHMARK, run.recipe.evaluation, retraining)
        check_queries(run, queries)
        if damping == CHOSEN and found.subsets < 2 * MIN_SUBSETS:
            said = "too few to choose the damping on one half and report on the other"
            raise UsageError(f"subsets {found.subsets}: {said}")
        asked = queries_of(run, found)
        opened = make_benchmark(run, run.folder / BENCHMARK, found, engine or POOL, asked, device)
        cache = cache or run.features
    else:
        assert benchmark is not None
        opened = Benchmark.open(benchmark)
    with kept_until_done(cache, out) as folder:
        comparison = compare(
            opened,
            [EVERY_METHOD] if every else methods,
            folder,
            settings,
            model=earlier,
            queries=queries,
            output=output_function,
            damping=damping,
            grid=grid,
            device=device,
            engine=engine,
        )
        if run is not None:
            save_comparison(run, comparison)
        if out is not None:
            write_text(out, comparison.json())
    _show(comparison.table(), table, "The numbers", [] if out is None else [out])


def retrain(
    run_folder: RunFolder, /, *, retraining: TypedRetraining = AS_BEFORE, workers: Workers = HERE, device: Device = None
) -> None:
    """Retrain a run's model for methods that learn from it.

    Ensembles, empirical influence and datamodels need models that were retrained on random subsets. This command makes
    RUN/retrained, of other subsets than RUN/benchmark. `dtrak evaluate lds RUN` and `dtrak attribute RUN` then use it.
    """
    run, folder = Run.open(run_folder), run_folder / RETRAINED
    settings = RetrainingSettings.resumed(folder, run.recipe.evaluation, retraining, OTHER_SUBSETS)
    queries = queries_of(run, settings)
    made = make_benchmark(run, folder, settings, workers.chosen() or POOL, queries, fastest(device))
    tell("The retrained models' losses", made.folder)


def counterfactual(
    run_folder: RunFolder,
    /,
    *,
    method: Annotated[
        str, option("NAME", "A method from `dtrak methods`, several such as trak,d-trak, or all.")
    ] = "random,trak,d-trak",
    count: Annotated[
        int | None,
        option(
            "Q",
            "How many generated pictures to draw again, the first ones.",
            "60, or as many as there are",
            whole(1, "count"),
        ),
    ] = None,
    remove: Annotated[
        int | None,
        option(
            "N",
            "How many training images to remove for each picture, the highest-scoring ones.",
            "a fifth of all",
            whole(1, "remove"),
        ),
    ] = None,
    step: Annotated[
        list[str] | None,
        option(
            "T",
            "Compare the models' estimates of the picture at this timestep of its trajectory, or at several: 400,300. "
            "journey-trak then has scores for each timestep.",
            "the finished picture",
        ),
    ] = None,
    table: Table = None,
    typed: TypedWithoutStep = NOTHING,
    cache: Cache = None,
    workers: Workers = HERE,
    device: Device = None,
) -> None:
    """Measure how pictures change without their top images.

    For each generated picture, the run's model is retrained without the highest-scoring training images and draws from
    the same seed again. The distances between the two pictures, boxplots and the pictures side by side are written into
    RUN/counterfactual. The cosine between pictures is that of --encoder.
    """
    names = [one.strip() for text in step or () for one in text.split(",")]
    for name in names:
        if not name.isdecimal() or len(name) >= DIGITS:
            raise UsageError(f"step {shortened(name)}: give a timestep such as 400, or several: 400,300")
    run, engine = Run.open(run_folder), workers.chosen()
    _check_files(None, table)
    redrawing = redrawn.choose_pictures(run, fastest(device), count, remove, [int(name) for name in names])
    settings, methods, _ = asked_for(typed, method, settings_of(run))
    results = counterfactual_run(redrawing, methods, settings, engine or POOL, cache=cache, gradient_engine=engine)
    folders = [redrawing.folder(result.step) for result in results]
    for result, folder in zip(results, folders, strict=True):
        save_counterfactual_figures(result, folder)
    _show(redrawn.table(results), table, "The numbers and figures", folders)


def credit(
    run_folder: RunFolder,
    /,
    *,
    by: Annotated[str, option("COLUMN", "The column of the training images whose groups are left out.")] = "artist",
    queries: QueryKind = "generated",
    method: Methods = None,
    highest: Highest = None,
    seeds: Annotated[Seeds | None, Parameter()] = None,
    out: Annotated[Place | None, option("FILE.json", "Where to write the numbers.", "RUN/credit.json")] = None,
    table: Table = None,
    typed: Typed = NOTHING,
    cache: Cache = None,
    workers: Workers = HERE,
    device: Device = None,
) -> None:
    """Measure how well credit predicts leaving artists out.

    The run's model is retrained without all images of each artist, and once on all images, with several seeds. The
    losses of the run's queries, and the pictures drawn again, tell how much each artist matters. Then the credit of
    each method is compared with that. The trainings are kept in RUN/trainings.
    """
    run, engine, out = Run.open(run_folder), workers.chosen(), out or run_folder / "credit.json"
    _check_files(out, table)
    check_queries(run, queries)
    # The queries, and the noise of their losses, are those of the run's benchmark.
    given: dict[str, Any] = {} if seeds is None else {"seeds": seeds}
    retraining = RetrainingSettings.resumed(run.folder / BENCHMARK, run.recipe.evaluation, given)
    settings, methods, _ = asked_for(typed, method, settings_of(run), run.usual_method)
    comparison = credit_run(
        run,
        by,
        queries,
        methods,
        settings,
        retraining,
        engine or POOL,
        fastest(device),
        highest=highest,
        cache=cache,
        gradient_engine=engine,
    )
    write_json(out, comparison.json())
    _show(comparison.table(), table, "The numbers", [out])


def _check_files(out: Path | None, table: Path | None) -> None:
    """Refuse files that cannot be written, before hours of work."""
    if table is not None:
        check_table_path(table)
        if out is not None and out.resolve() == table.resolve():
            raise UsageError(f"--out and --table both name {out}: give two different files")
    for path in (out, table):
        if path is not None:
            check_writable(path)


def _show(numbers: Numbers, table: Path | None, title: str, written: Sequence[Path]) -> None:
    """Print a table and the paths that were written, and write the table to a file if one is given."""
    show(numbers)
    for path in written:
        tell(title, path)
    if table is not None:
        write_table(numbers, table)
        tell("The table", table)
