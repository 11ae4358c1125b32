"""Make the run that comes with the package, in src/dtrak/runs/ready, from the model of benchmarks/digits.

    python benchmarks/ready.py

takes a minute on two cores. The model is the one that the benchmark's 192 models were retrained for, so that the LDS
that is measured there is that of the run's scores.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from dtrak.attribution.benchmark_folder import Benchmark
from dtrak.evaluation.comparison import compare, save_comparison
from dtrak.files import write_json
from dtrak.methods import METHODS
from dtrak.runs.drawing import generate
from dtrak.runs.ready import SHIPPED
from dtrak.runs.recipes import load_recipe
from dtrak.runs.run import Run
from dtrak.runs.run_questions import attribute_run, question_of, renamed, settings_of

BENCHMARK = Path(__file__).parent / "digits"
CHEAPER = {"timesteps": 4, "projection_dim": 2048}  # so that the explorer has the features in seconds
MEASURED = [METHODS["step-trak"], METHODS["d-trak"]]
SECONDS_PER_STEP = 0.045  # of training on two cores, as `dtrak demo` measured it
KEPT = ("recipe.yaml", "run.json", "training.json", "scores.npz", "model", "generated", "lds")


def main() -> None:
    recipe = load_recipe("digits", changes={"attribution": CHEAPER})
    with TemporaryDirectory() as temporary:
        run = Run.create(Path(temporary) / "digits", recipe)
        shutil.copytree(BENCHMARK / "model", run.folder / "model")
        write_json(run.folder / "training.json", {"steps": 1440, "seconds_per_step": SECONDS_PER_STEP})
        generate(run, run.model(), recipe.generation.count, recipe.generation.seed, recipe.generation.steps)
        settings = settings_of(run)
        pictures = run.query_source(str(run.folder / "generated"))
        attribute_run(run, question_of(run, pictures, MEASURED[:1], settings))
        for queries in ("validation", "generated"):
            found = compare(
                Benchmark.open(BENCHMARK),
                MEASURED,
                Path(temporary) / queries,
                settings,
                queries=queries,
                damping="auto",
            )
            asked = renamed(found.question, lambda name: Path(name).name)  # of this machine
            save_comparison(run, replace(found, question=asked))
        shutil.rmtree(SHIPPED, ignore_errors=True)
        SHIPPED.mkdir()
        for name in KEPT:
            copy = shutil.copytree if (run.folder / name).is_dir() else shutil.copy
            copy(run.folder / name, SHIPPED / name)


if __name__ == "__main__":
    main()
