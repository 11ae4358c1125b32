"""Write a recipe that trains a model like one that exists, with comments on what the user has to fill in."""

from typing import Any

import yaml

from dtrak.errors import UsageError
from dtrak.models import DiffusionModel
from dtrak.models.families import FAMILIES
from dtrak.models.noise_process import Diffusion

HEAD = """\
# A recipe for a model like {source}. Change the lines that have a comment: a model does not tell
# which images it was trained on, or for how long.
"""


def recipe_from(model: DiffusionModel) -> str:
    """Return the YAML of a recipe that trains such a model."""
    if model.autoencoder is None and not isinstance(model.process, Diffusion):
        raise UsageError(
            f"{model.source} has a {type(model.scheduler).__name__}: recipes train U-Nets on pixels with a "
            "DDPMScheduler only; use your own training loop with dtrak.evaluation.OwnBenchmark"
        )
    settings: dict[str, Any] = FAMILIES[model.family].settings_of(model)
    _, height, width = model.image_shape
    size = f"  size: {height}\n" if height == width else ""
    section = yaml.safe_dump({"model": settings}, sort_keys=False, allow_unicode=True)
    return (
        HEAD.format(source=model.source)
        + "name: mine\n"
        + f"summary: like {model.source}\n"
        + f"data:\n  train: images/  # the training images: a folder, an .npz file or hf:name:split\n{size}"
        + "  # validation: others/  (images that it was not trained on, for `dtrak evaluate lds`)\n"
        + section
        + "training:\n  epochs: 100  # how often it saw each image\n"
        + f"  batch_size: {4 if model.autoencoder else 128}  # the images in a step\n"
        + "  learning_rate: 1.0e-4  # the highest\n"
    )
