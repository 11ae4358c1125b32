"""The commands that show what there is: `dtrak info`, `methods`, `recipes`, `figure` and `card`."""

import os
from pathlib import Path

from dtrak.cli import options, options_look
from dtrak.errors import UsageError
from dtrak.tables import Table, show, show_yaml, tell


def methods() -> None:
    """List the methods, with what each one is, needs and costs."""
    from dtrak.methods import METHODS
    from dtrak.methods.method import described_needs

    rows = [(one.name, one.summary, *described_needs(one)) for one in METHODS.values()]
    show(Table(["method", "what it is", "needs", "costs"], rows))


def recipes(name: options.RecipeName = None, model: options.FromModel = None) -> None:
    """List the recipes, or print one to start your own from.

    With --from, the recipe is one for a model that you have. The comments of a recipe explain each line.
    """
    from dtrak.runs.recipes import load_recipe, recipe_names, recipe_text

    if model is not None:
        from dtrak.models import load_model
        from dtrak.runs.recipe_of_model import recipe_from

        show_yaml(recipe_from(load_model(model)))
        return
    if name is not None:
        load_recipe(name)  # refuses a file that is not a recipe
        show_yaml(recipe_text(name))
        return
    show(Table(["recipe", "what it is"], [(one, load_recipe(one).summary) for one in recipe_names()]))


def info(run_folder: options_look.RunToDescribe = None) -> None:
    """Describe a run, or this machine for a bug report.

    For a run: what it holds, what was measured, and which command would be next. Without one: the versions of packages,
    devices and cores.
    """

    if run_folder is not None:
        from dtrak.report.overview import described
        from dtrak.runs.run import Run

        opened = Run.open(run_folder)
        show(Table(["run", str(run_folder)], list(described(opened).items())))
        return

    import torch

    from dtrak.devices import devices
    from dtrak.runs.run import versions

    machine = {"devices": ", ".join(devices()), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    show(Table(["what", "this machine"], [(name, str(value)) for name, value in {**versions(), **machine}.items()]))


def figure(
    run_folder: options.RunFolder,
    out: options_look.FigureFile,
    kind: options_look.FigureKind = "proponents",
    method: options_look.OneMethod = None,
    queries: options_look.WhichPictures = "4",
    top: options_look.TopImages = 5,
    by: options_look.Column = None,
) -> None:
    """Draw a figure for a paper: vector graphics, or a PNG.

    KIND is proponents (pictures with the training images that made them), credit (shares of groups, with intervals),
    self-influence, lds (how well each method predicts retraining), or curve (LDS against a setting).
    """
    from dtrak.files import check_writable
    from dtrak.runs.run import Run

    opened = Run.open(run_folder)
    check_writable(out)

    from dtrak.report.run_figures import run_figure

    run_figure(opened, kind, method, queries, top, by).save(out)
    tell("The figure", out)


def card(
    run_folder: options.RunFolder,
    picture: options_look.Picture,
    out: options_look.CardFile = None,
    method: options_look.OneMethod = None,
) -> None:
    """Write one picture's attribution card, to hand to somebody.

    The card has the picture, its strongest training images, the credit of each group, the method, how far to trust it,
    and the date, on one page.
    """
    from dtrak.files import check_writable
    from dtrak.runs.run import Run

    opened = Run.open(run_folder)
    path = out or Path(f"{Path(picture).stem}-card.png")
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise UsageError(f"cannot write a card to {path}: its ending has to be .png, .pdf or .svg")
    check_writable(path)

    from dtrak.report.card import card_of_run

    card_of_run(opened, picture, method).save(path)
    tell("The card", path)
