"""Make the run that comes with the package, in src/dtrak/runs/ready, from the model of benchmarks/digits.

    python benchmarks/ready.py

takes a minute on two cores. The model is the one that the benchmark's 192 models were retrained for, so that the LDS
that is measured there is that of the run's scores.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from dtrak.runs.attributing import attribute_run, settings_of

from dtrak.attribution.benchmark_folder import Benchmark
from dtrak.evaluation.comparison import compare
from dtrak.evaluation.run_evaluation import save_comparison
from dtrak.files import write_json
from dtrak.runs.drawing import generate
from dtrak.runs.ready import SHIPPED
from dtrak.runs.recipes import load_recipe
from dtrak.runs.run import Run

BENCHMARK = Path(__file__).parent / "digits"
CHEAPER = {"timesteps": 4, "projection_dim": 2048}  # so that the explorer has the features in seconds
METHODS = ["step-trak", "d-trak"]
SECONDS_PER_STEP = 0.045  # of training on two cores, as `dtrak demo` measured it
KEPT = ("recipe.yaml", "run.json", "training.json", "attribution.json", "scores.npz", "model", "generated", "lds")


def main() -> None:
    recipe = load_recipe("digits", changes={"attribution": CHEAPER})
    with TemporaryDirectory() as temporary:
        run = Run.create(Path(temporary) / "digits", recipe)
        shutil.copytree(BENCHMARK / "model", run.folder / "model")
        write_json(run.folder / "training.json", {"steps": 1440, "seconds_per_step": SECONDS_PER_STEP})
        generate(run, run.model(), recipe.generation.count, recipe.generation.seed, recipe.generation.steps)
        settings = settings_of(run)
        attribute_run(run, run.model(), str(run.folder / "generated"), ["step-trak"], settings)
        for queries in ("validation", "generated"):
            found = compare(
                Benchmark.open(BENCHMARK),
                METHODS,
                Path(temporary) / queries,
                replace(settings, checkpoints=None),
                queries=queries,
                damping="auto",
            )
            save_comparison(run, found)
        shutil.rmtree(SHIPPED, ignore_errors=True)
        SHIPPED.mkdir()
        for name in KEPT:
            copy = shutil.copytree if (run.folder / name).is_dir() else shutil.copy
            copy(run.folder / name, SHIPPED / name)


if __name__ == "__main__":
    main()
