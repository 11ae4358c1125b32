"""Make a run of a model that was trained elsewhere, so that reports, the explorer and credit work on it.

The run's file model.json names the model. Its recipe names the images by paths that are valid in any working folder. It
cannot say how the model was trained, so that the model cannot be retrained; `recipe_from` writes a recipe to complete.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from dtrak.checks import first_mistake
from dtrak.errors import UsageError
from dtrak.files import full_name, write_json
from dtrak.images.images import ImageSource
from dtrak.images.sources import full_source
from dtrak.models.families import FAMILIES
from dtrak.runs.recipes import Recipe, load_recipe, recipe_names
from dtrak.runs.run import ELSEWHERE, Run

if TYPE_CHECKING:
    from dtrak.models import DiffusionModel


def run_elsewhere(
    folder: Path,
    model: "DiffusionModel",
    given: tuple[str, str | None, str | None, str | None],
    train: ImageSource,
) -> Run:
    """Make the run of a model, or open it again; `given` are the model, its LoRA, prompt and precision, as typed."""
    if (folder / "recipe.yaml").exists() and not (folder / ELSEWHERE).exists():
        raise UsageError(f"{folder} is a run of a recipe: give another --run")
    content = {
        "name": folder.name or "run",
        "summary": f"{given[1] or given[0]}, trained elsewhere",
        "data": {"train": full_source(str(train.source)), "size": train.size, "channels": train.channels},
        "model": settings_of(model),
        "training": {"epochs": 1},
    }
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{given[0]}: no recipe can describe it: {first_mistake(error)}") from None
    place = {
        "model": full_name(given[0]),
        "lora": given[1] and full_name(given[1]),
        "prompt": given[2],
        "precision": given[3],
    }
    run = Run.create(folder, recipe, check=False)
    write_json(folder / ELSEWHERE, place)
    return run


def recipe_to_train(source: str, scale: str | None = None, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Load a recipe that is to be trained; refuse that of a run of a model that was trained elsewhere."""
    recipe = load_recipe(source, scale, changes)
    if source not in recipe_names() and Run(Path(source).parent, recipe).is_elsewhere:
        raise UsageError(
            f"{source} belongs to a model that was trained elsewhere, and does not say how: complete the recipe that "
            "`dtrak recipes --from MODEL` prints, and give that"
        )
    return recipe


def settings_of(model: "DiffusionModel") -> dict[str, Any]:
    """Return a recipe's section `model` that describes a model."""
    describe = getattr(FAMILIES[model.family], "settings_of", None)
    if describe is None:
        raise UsageError(f"{model.source}: the kind of model {model.family} cannot be described in a recipe")
    settings: dict[str, Any] = describe(model)
    return settings


RECIPE_HEAD = """\
# A recipe for a model like {source}. Change the lines that have a comment: a model does not tell
# which images it was trained on, or for how long.
"""


def recipe_from(model: "DiffusionModel") -> str:
    """Return the YAML of a recipe that trains such a model, with comments on what the user has to fill in."""
    from dtrak.models.noise_process import Diffusion

    if model.autoencoder is None and not isinstance(model.process, Diffusion):
        raise UsageError(
            f"{model.source} has a {type(model.scheduler).__name__}: recipes train U-Nets on pixels with a "
            "DDPMScheduler only; use your own training loop with dtrak.evaluation.OwnBenchmark"
        )
    _, height, width = model.image_shape
    size = f"  size: {height}\n" if height == width else ""
    section = yaml.safe_dump({"model": settings_of(model)}, sort_keys=False, allow_unicode=True)
    return (
        RECIPE_HEAD.format(source=model.source)
        + "name: mine\n"
        + f"summary: like {model.source}\n"
        + f"data:\n  train: images/  # the training images: a folder, an .npz file or hf:name:split\n{size}"
        + "  # validation: others/  (images that it was not trained on, for `dtrak evaluate lds`)\n"
        + section
        + "training:\n  epochs: 100  # how often it saw each image\n"
        + f"  batch_size: {4 if model.autoencoder else 128}  # the images in a step\n"
        + "  learning_rate: 1.0e-4  # the highest\n"
    )
