"""Do a whole run, from its recipe to its report; work that an earlier call has finished is not done again."""

from pathlib import Path

from dtrak.evaluation.cost import check_run
from dtrak.methods import chosen_methods
from dtrak.report import write_report
from dtrak.runs.drawing import generate
from dtrak.runs.recipes import Recipe
from dtrak.runs.run import Run
from dtrak.runs.run_questions import attribute_run, question_of, settings_of
from dtrak.runs.training import train


def run_all(folder: Path, recipe: Recipe, device: str) -> Path:
    """Train a model, draw pictures, attribute them and write the report; return the report's path."""
    check_run(Run(folder, recipe), device)
    run = Run.create(folder, recipe)
    model = train(run, device)
    generation, attribution = recipe.generation, recipe.attribution
    generate(run, model, generation.count, generation.seed, generation.steps)
    settings = settings_of(run)
    methods = chosen_methods(attribution.method, settings.objective)
    question = question_of(run, run.query_source(str(run.folder / "generated")), methods, settings)
    attribute_run(run, question, device=device, every=attribution.method == "all")
    return write_report(run)
