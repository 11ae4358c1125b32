"""Do a whole run, from its recipe to its report; work that an earlier call has finished is not done again."""

from pathlib import Path

from dtrak.evaluation.checking import check_run
from dtrak.methods import split_methods
from dtrak.report import write_report
from dtrak.runs.attributing import attribute_run, settings_of
from dtrak.runs.drawing import generate
from dtrak.runs.recipes import Recipe
from dtrak.runs.run import Run
from dtrak.runs.training import train


def run_all(folder: Path, recipe: Recipe, device: str) -> Path:
    """Train a model, draw pictures, attribute them and write the report; return the report's path."""
    check_run(Run(folder, recipe), device)
    run = Run.create(folder, recipe)
    model = train(run, device)
    generation, pictures = recipe.generation, str(run.folder / "generated")
    generate(run, model, generation.count, generation.seed, generation.steps)
    settings = settings_of(run)
    methods = split_methods(recipe.attribution.method, settings.objective)
    attribute_run(run, model, pictures, methods, settings, device=device)
    return write_report(run)
