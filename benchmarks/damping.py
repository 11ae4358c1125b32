"""How far each way to set the damping stays behind the best λ in hindsight, in points of LDS.

    python benchmarks/damping.py BENCHMARK … --cache FOLDER --table docs/damping.md

For every benchmark folder, its validation and generated queries, a few ways to make features and three objectives: the
best of a fine grid on all subsets, the effective dimension there, and what the two rules and a fixed fraction lose.
Features are kept in --cache, so that a stopped run goes on.
"""

import argparse
from pathlib import Path

from rich.console import Console

from dtrak.attribution import gather
from dtrak.benchmark import QUERIES, Benchmark
from dtrak.damping import Damping, effective_dimension
from dtrak.evaluation.lds import mean_lds
from dtrak.evaluation.tables import Cell, Table, write_table
from dtrak.methods import get_method
from dtrak.models import load_model

SETTINGS = {
    "K = 10": {},
    "K = 100": {"timesteps": 100},
    "K = 10, up blocks and conv_out": {"parameters": "up_blocks|conv_out"},
    "K = 10, conv_out alone": {"parameters": "conv_out", "projection": "identity"},
    "K = 10, own noise": {"noise": "per-image"},
}
OBJECTIVES = ("simple", "square", "avg")
GRID = [Damping("relative", 10.0 ** (power / 8)) for power in range(-36, 25)]
RULES = {"auto": Damping("auto"), "spectrum": Damping("spectrum"), "0.1": Damping("relative", 0.1)}
HEADS = ["benchmark", "queries", "features", "objective", "best λ", "its d", "best LDS %", *RULES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", type=Path, nargs="+")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--only", default="", help="only settings that contain this text")
    parser.add_argument("--table", type=Path, help="write the table here as well")
    arguments = parser.parse_args()
    rows = [
        row
        for folder in arguments.benchmarks
        for name in SETTINGS
        if arguments.only in name
        for queries, losses in QUERIES.items()
        if (folder / losses).exists()
        for row in measure(folder, queries, name, arguments.cache)
    ]
    table = Table(HEADS, rows)
    Console(width=150).print(table)
    if arguments.table:
        write_table(table, arguments.table)


def measure(folder: Path, queries: str, name: str, cache: Path) -> list[list]:
    """The rows of one setting, one for each objective."""
    benchmark = Benchmark.open(folder)
    masks, losses = benchmark.masks, benchmark.losses(queries)
    rows = []
    for objective in OBJECTIVES:
        evidence = gather(
            load_model(str(folder / "model")),
            benchmark.train,
            benchmark.queries(queries),
            ["d-trak"],
            cache / f"{folder.name} {name}",
            objective=objective,
            with_partners=True,
            **SETTINGS[name],
        )
        method = get_method("d-trak")
        vectors = next(evidence.inputs(method))

        def found(damping, evidence=evidence, method=method):
            return mean_lds(evidence.scores(method, damping), masks, losses)

        best = max(GRID, key=found)
        most = found(best)
        behind = [most - found(rule) for rule in RULES.values()]
        rows.append(
            [
                folder.name,
                queries,
                name,
                objective,
                Cell(best.value, f"{best.value:.2g}"),
                Cell(None, f"{effective_dimension(vectors.kernel, vectors.absolute(best)):.0f}"),
                Cell(most, f"{most:.1f}"),
                *(Cell(-loss, f"{-loss:+.1f}") for loss in behind),
            ]
        )
        print(*(getattr(cell, "text", cell) for cell in rows[-1]), flush=True)
    return rows


if __name__ == "__main__":
    main()
