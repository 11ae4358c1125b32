"""The paper's findings and our own choices, measured again on small benchmarks; each finding is a table with its error.

    python benchmarks/paper digits=RUN/benchmark --run digits=RUN --folder runs/paper --out docs/results
    python benchmarks/paper cifar2=FOLDER --only constructions,noise

Writes OUT/NAME.md and OUT/NAME-*.png for each benchmark NAME. Everything measured is kept in the folder: kill it and
run it again, and only what is missing is computed. LDS is with the best damping in hindsight, as in the paper, unless
a table says otherwise; ± is the standard deviation of a bootstrap over the retrained models.
"""

import argparse
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path

from figures import draw
from findings import FINDINGS
from own import OWN
from study import Study

from dtrak.benchmark import Benchmark
from dtrak.evaluation.lds import ceiling
from dtrak.evaluation.tables import Table
from dtrak.files import write_text

EVERY = {**FINDINGS, **OWN}


def main() -> None:
    args = parse()
    for study in args.studies:
        parts = [heading(study)]
        for name in args.only:
            started = time.monotonic()
            for table in EVERY[name](study):
                parts.append(section(table))
            print(f"{study.name}: {name}, {time.monotonic() - started:.0f} s", file=sys.stderr)
            write_text(args.out / f"{study.name}.md", "\n".join(parts))
        if args.only == list(EVERY):
            draw(study, args.out)


def heading(study: Study) -> str:
    """What was measured, and the command that does it again."""
    benchmark, lines = study.benchmark, [f"# {study.name}", ""]
    lines += [f"```\n{shlex.join(['python', 'benchmarks/paper', *sys.argv[1:]])}\n```", ""]
    for kind in study.query_kinds:
        losses = benchmark.losses(kind)
        top = ceiling(losses)
        known = "unknown, as there is one seed" if top is None else f"{top:.1f} %"
        lines.append(
            f"- {kind}: {losses.shape[2]} queries, {losses.shape[0]} subsets of {len(benchmark.train):,} images, "
            f"{losses.shape[1]} seeds; noise ceiling {known}"
        )
    return "\n".join(lines) + "\n"


def section(table: Table) -> str:
    return f"## {table.caption}\n\n{replace(table, caption='').markdown()}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--run", action="append", default=[], metavar="NAME=RUN", help="for its checkpoints")
    parser.add_argument("--folder", type=Path, default=Path("runs/paper"), help="keeps what was measured")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--only", default=",".join(EVERY), help=f"some of {', '.join(EVERY)}")
    args = parser.parse_args()
    args.only = args.only.split(",")
    if unknown := set(args.only) - EVERY.keys():
        parser.error(f"--only {min(unknown)}: choose from {', '.join(EVERY)}")
    runs = {name: Path(path) for name, _, path in (one.partition("=") for one in args.run)}
    args.studies = [
        Study(name, Benchmark.open(path), args.folder / name, runs.get(name))
        for name, _, path in (one.partition("=") for one in args.benchmarks)
    ]
    return args


if __name__ == "__main__":
    main()
