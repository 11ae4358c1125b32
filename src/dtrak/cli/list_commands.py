"""The commands that list what there is: `dtrak methods` and `dtrak recipes`."""

from typing import Annotated

from cyclopts import Parameter

from dtrak.cli.shared_options import option
from dtrak.methods import METHODS
from dtrak.methods.method import described_needs
from dtrak.models import load_model
from dtrak.runs.recipe_of_model import recipe_from
from dtrak.runs.recipes import load_recipe, recipe_names, recipe_text
from dtrak.tables import Table, show, show_yaml


def methods() -> None:
    """List the methods, with what each one is, needs and costs."""
    rows = [(one.name, one.summary, *described_needs(one)) for one in METHODS.values()]
    show(Table(["method", "what it is", "needs", "costs"], rows))


def recipes(
    name: Annotated[str | None, Parameter("NAME", help="The recipe to print; without it, all are listed.")] = None,
    /,
    *,
    model: Annotated[
        str | None, option("MODEL", "Print a recipe for a model like this one, to complete.", name="--from")
    ] = None,
) -> None:
    """List the recipes, or print one to start your own from.

    With --from, the recipe is one for a model that you have. The comments of a recipe explain each line.
    """
    if model is not None:
        show_yaml(recipe_from(load_model(model)))
    elif name is not None:
        load_recipe(name)  # refuses a file that is not a recipe
        show_yaml(recipe_text(name))
    else:
        show(Table(["recipe", "what it is"], [(one, load_recipe(one).summary) for one in recipe_names()]))
