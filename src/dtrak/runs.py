"""A run's folder: where everything lies, and what it was made from, so that it can be made again.

- recipe.yaml: the recipe as it was used; run.json: versions; subset.txt: ids, if not all images were used
- model/: diffusers layout; checkpoints/: the same at evenly spaced steps of training
- generated/: pictures by seed; features/: the stores; scores.npz, attribution.json: who made them, and how; report.html
"""

import platform
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from dtrak.data import Images, load_images, read_ids
from dtrak.errors import UsageError
from dtrak.files import write_json, write_text
from dtrak.models import DiffusionModel, load_model
from dtrak.recipes import Recipe, dump_recipe, load_recipe

PACKAGES = ("dtrak", "torch", "diffusers", "datasets", "numpy", "scipy")


@dataclass(frozen=True)
class Run:
    folder: Path
    recipe: Recipe

    @classmethod
    def create(cls, folder: str | Path, recipe: Recipe, subset: str | None = None) -> "Run":
        """Start a run, or take up one that was started with the same recipe and subset (a file of ids)."""
        run = cls(Path(folder), recipe)
        ids = None if subset is None else "".join(f"{one}\n" for one in read_ids(subset))
        if (run.folder / "recipe.yaml").exists():
            run._check_same(ids, subset)
            return run
        if subset is not None:
            run.images(recipe.data.train).positions(read_ids(subset), subset)
            write_text(run.folder / "subset.txt", ids or "")
        write_json(run.folder / "run.json", versions())
        write_text(run.folder / "recipe.yaml", dump_recipe(recipe))
        return run

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        path = Path(folder) / "recipe.yaml"
        if not path.is_file():
            raise UsageError(
                f"{folder} is not a run: it has no recipe.yaml (`dtrak train RECIPE --out {folder}` makes one)"
            )
        return cls(Path(folder), load_recipe(str(path)))

    def images(self, source: str) -> Images:
        """Any images, cropped, resized and coloured as the recipe says."""
        data = self.recipe.data
        return load_images(source, crop=data.crop, size=data.size, channels=data.channels)

    def query_images(self, source: str) -> Images:
        """The same, but pictures of the training images' own shape, such as generated ones, stay as they are."""
        try:
            plain = load_images(source, channels=self.recipe.data.channels)
        except UsageError:
            return self.images(source)
        return plain if plain.shape == self.train_images.shape else self.images(source)

    @cached_property
    def train_images(self) -> Images:
        """What the model is trained on: the recipe's images, or the subset of them that the run was started with."""
        images = self.images(self.recipe.data.train)
        subset = self.folder / "subset.txt"
        if not subset.exists():
            return images
        return images.select(images.positions(read_ids(str(subset)), str(subset)))

    def model(self) -> DiffusionModel:
        if not (self.folder / "model").exists():
            raise UsageError(
                f"{self.folder} has no model yet: `dtrak train {self.folder}/recipe.yaml --out {self.folder}`"
            )
        return load_model(str(self.folder / "model"))

    def _check_same(self, ids: str | None, subset: str | None) -> None:
        path = self.folder / "recipe.yaml"
        there, wanted = _flat(yaml.safe_load(path.read_text())), _flat(yaml.safe_load(dump_recipe(self.recipe)))
        for field in {**there, **wanted}:
            if there.get(field) != wanted.get(field):
                raise UsageError(
                    f"{self.folder} was made with {field} {there.get(field)}, not {wanted.get(field)}: "
                    "give another --out, or remove it"
                )
        stored = self.folder / "subset.txt"
        if (stored.read_text() if stored.exists() else None) != ids:
            raise UsageError(
                f"{self.folder} was made with another subset than {subset or 'all images'}: give another --out"
            )


def _flat(section: Any, prefix: str = "") -> dict[str, Any]:
    """{"training": {"epochs": 3}} → {"training.epochs": 3}."""
    if not isinstance(section, dict):
        return {prefix: section}
    flat: dict[str, Any] = {}
    for key, value in section.items():
        flat |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def versions() -> dict[str, str]:
    """Of Python and of what the numbers depend on."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
