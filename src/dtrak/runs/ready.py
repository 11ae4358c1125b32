"""A small finished run that comes with the package, for those who want to look before they train.

It is a run of the demo's recipe, made by `benchmarks/ready.py`: a model, 60 pictures that it drew, their scores, and
the LDS of these scores. Features are not shipped; they are computed in seconds when they are needed.
"""

import os
from pathlib import Path

from dtrak.files import write_bytes
from dtrak.runs.recipes import load_recipe
from dtrak.runs.run import Run

SHIPPED = Path(__file__).parent / "ready"


def ready_run(folder: str | Path = "runs/digits") -> Run:
    """Copy the run that comes with the package into a folder, unless that holds a run already, and open it.

    >>> import dtrak
    >>> print(dtrak.ready_run("runs/digits"))
    Run runs/digits: a small DDPM on scikit-learn's embedded 8×8 digits; the demo, a few minutes on two cores
    training images: 1,000 from digits:train
    model: trained
    pictures: 60 generated
    scores: of step-trak for generated
    """
    if not os.path.exists(Path(folder) / "recipe.yaml"):
        copy_ready_run(Path(folder))
    return Run.open(folder)


def copy_ready_run(folder: Path) -> None:
    """Copy the shipped files into a folder, the recipe last, so that only a complete folder is a run."""
    Run(folder, load_recipe(str(SHIPPED / "recipe.yaml"))).check_folder()
    files = sorted((path for path in SHIPPED.rglob("*") if path.is_file()), key=lambda path: path.name == "recipe.yaml")
    for path in files:
        write_bytes(folder / path.relative_to(SHIPPED), path.read_bytes())
