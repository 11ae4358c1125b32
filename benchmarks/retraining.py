"""How many models a minute the engines retrain on this machine, beside one process with one thread.

    python benchmarks/retraining.py                     # the digits recipe, cut to a few epochs
    python benchmarks/retraining.py --recipe cifar2-small --epochs 1 --jobs 6      # where its images lie
    python benchmarks/retraining.py --rows pool,ray

Every job trains the recipe's model on a random half of its images and takes the outputs of a few queries. The rate is
that of a run under way: it counts from when every worker has finished its first job, as imports take seconds once. The
rows take turns, so that what else the machine does hits them alike; the best turn of each counts. The CPU time of a
model hardly depends on what else runs: where it stays the same, idle cores give their number as the ratio.
"""

import argparse
import os
import platform
import shlex
import sys
import time
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version

from rich.console import Console
from rich.table import Table

from dtrak.engines import cores, make_engine
from dtrak.evaluation.training_jobs import Outputs, Retraining, TrainingJob, random_subsets, retrain
from dtrak.images.images import load_images
from dtrak.runs.recipes import load_recipe

QUERIES = 20
TIMESTEPS = tuple(range(0, 1000, 100))


@dataclass(frozen=True)
class Row:
    label: str
    engine: str
    workers: int
    threads: int


def rows() -> dict[str, Row]:
    count = cores()
    return {
        "process": Row("this process, 1 thread", "process", 1, 1),
        "threads": Row(f"this process, {count} threads", "process", 1, count),
        "pool": Row(f"pool, {count} workers with 1 thread", "pool", count, 1),
        "ray": Row(f"ray on this machine, {count} workers with 1 thread", "ray", count, 1),
    }


@dataclass(frozen=True, order=True)
class Speed:
    rate: float  # models a minute
    cpu_seconds: float  # of one model, the least
    start_up: float  # seconds


def cpu_seconds(context: Retraining, job: TrainingJob) -> float:
    """Of one job, in all threads of its process."""
    start = time.process_time()
    retrain(context, job)
    return time.process_time() - start


def speed(row: Row, context: Retraining, jobs: int) -> Speed:
    from retraining import cpu_seconds  # under the name by which workers find it

    start, ends, costs = time.perf_counter(), [], []
    todo = [TrainingJob(index) for index in range(jobs + row.workers)]
    for _, cost in make_engine(row.engine, row.workers).run(cpu_seconds, context, todo, row.threads):
        ends.append(time.perf_counter() - start)
        costs.append(cost)
    under_way, first = ends[-1] - ends[row.workers - 1], ends[row.workers - 1]
    return Speed(60 * jobs / under_way, min(costs), max(0.0, first - under_way * row.workers / jobs))


def measure(chosen: dict[str, Row], context: Retraining, jobs: int, rounds: int) -> dict[str, Speed]:
    best: dict[str, Speed] = {}
    for turn in range(rounds):
        for name, row in chosen.items():
            found = speed(row, context, jobs)
            print(f"turn {turn + 1}, {row.label}: {found.rate:.2f} models a minute", file=sys.stderr)
            best[name] = max(best.get(name, found), found)
    return best


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="digits")
    parser.add_argument("--epochs", type=int, default=4, help="instead of the recipe's (default: 4)")
    parser.add_argument("--jobs", type=int, default=8, help="models of each row and turn (default: 8)")
    parser.add_argument("--rounds", type=int, default=2, help="turns (default: 2)")
    parser.add_argument("--rows", default="process,threads,pool,ray", help="of process, threads, pool, ray")
    args = parser.parse_args()
    args.rows = {name: row for name, row in rows().items() if name in args.rows.split(",")}
    if not args.rows or min(args.epochs, args.jobs, args.rounds) < 1:
        parser.error("no such row" if not args.rows else "--epochs, --jobs and --rounds start from 1")
    return args


def main() -> None:
    args = parse()
    recipe = load_recipe(args.recipe)
    recipe = recipe.model_copy(update={"training": recipe.training.model_copy(update={"epochs": args.epochs})})
    data = recipe.data
    images = load_images(data.train, crop=data.crop, size=data.size, channels=data.channels).in_memory()
    masks = random_subsets(args.jobs + cores(), len(images), labels=images.columns.get("label"))
    queries = {"validation": images.select(range(QUERIES))}
    context = Retraining(recipe, images, masks, queries, Outputs(TIMESTEPS, noises=1))
    found = measure(args.rows, context, args.jobs, args.rounds)
    first = next(iter(found.values())).rate
    table = Table(title=f"{recipe.name}, {args.epochs} epochs on {masks[0].sum():,} images", title_justify="left")
    for title in ("", "models a minute", "ratio", "CPU s a model", "start-up, s"):
        table.add_column(title, justify="right" if title else "left")
    for name, one in found.items():
        cells = (f"{one.rate:.2f}", f"{one.rate / first:.2f}", f"{one.cpu_seconds:.2f}", f"{one.start_up:.0f}")
        table.add_row(args.rows[name].label, *cells)
    print(f"`{shlex.join(['python', 'benchmarks/retraining.py', *sys.argv[1:]])}`")
    busy = f"load {os.getloadavg()[0]:.1f} at the end"
    packages = ", ".join(f"{name} {version(name)}" for name in ("dtrak", "torch", "ray"))
    print(f"{date.today()}, {cores()} cores, {busy}, Python {platform.python_version()}, {packages}")
    Console().print(table)


if __name__ == "__main__":
    main()
