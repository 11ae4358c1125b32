"""A run's folder. It holds all results, and the recipe from which they can be made again.

- recipe.yaml: the recipe; run.json: versions of packages; subset.txt: ids, if not all images were used
- question.json: of a model that was trained elsewhere, in place of a recipe: what was asked about it
- model/: the trained model in the layout of diffusers; checkpoints/: the model at evenly spaced steps of training
- generated/: pictures by seed; latents/: encoded images and prompts; features/: the stores of features
- training.json: how long a step of training took
- scores.npz: the last scores, with the question that they answer; report.html
- benchmark/, lds/, counterfactual/: evaluations; trainings/: what retrained models gave; retrained/: models that
  methods learn from

`dtrak run RUN/recipe.yaml --out OTHER` makes the same run again.
"""

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dtrak.attribution.question import Question
from dtrak.attribution.score_files import read_question
from dtrak.attribution.scores import Scores
from dtrak.checks import first_difference
from dtrak.errors import UsageError, check_type
from dtrak.figures.html_pictures import facts
from dtrak.files import TEMPORARY, Remembered, clear_leftovers, write_json, write_text
from dtrak.images.images import Images, ImageSource, read_ids
from dtrak.images.selection import Selection
from dtrak.models import DiffusionModel, new_model
from dtrak.models.model_source import ModelSource
from dtrak.runs.recipes import Recipe, dump_recipe, load_recipe
from dtrak.runs.recipes.schema import Generation

PACKAGES = ("dtrak", "torch", "diffusers", "datasets", "numpy", "scipy")
SUBSET = "subset.txt"
QUESTION = "question.json"  # of a run whose model was trained elsewhere
SCORES = "scores.npz"
STATE = "training.safetensors"  # the state of an unfinished training
TIMES = "training.json"
BENCHMARK = "benchmark"  # the folder of retrained models in a run's folder
RETRAINED = "retrained"  # the folder of other retrained models, which methods learn from
TRAININGS = "trainings"  # the folder of what models gave that were trained without some images
# The folders in a run's folder. A new run is refused if one of these already holds files.
FOLDERS = (
    *("asked", BENCHMARK, "checkpoints", "counterfactual", "features", "generated", "latents", "lds"),
    *("model", RETRAINED, TRAININGS),
)


@dataclass(frozen=True)
class Run:
    """A run's folder, and its recipe; a model that was trained elsewhere has a question instead.

    >>> import dtrak
    >>> run = dtrak.open_run("runs/digits")
    >>> len(run.train_images), run.model().process.timesteps
    (1000, 1000)
    """

    folder: Path
    given_recipe: Recipe | None = None

    @property
    def recipe(self) -> Recipe:
        """The recipe; one that nobody knows is refused."""
        if self.given_recipe is None:
            raise UsageError(
                f"the model of {self.folder} was trained elsewhere, and nobody knows how: complete the recipe that "
                f"`dtrak recipes --from {self.model_source.name}` prints, or write a benchmark with your own training "
                "loop"
            )
        return self.given_recipe

    @property
    def is_elsewhere(self) -> bool:
        """Tell whether the model was trained elsewhere."""
        return self.given_recipe is None

    @cached_property
    def question(self) -> Question:
        """What was asked about a model that was trained elsewhere."""
        return Question.load(self.folder / QUESTION)[0]

    @property
    def summary(self) -> str:
        return f"{self.model_source.name}, trained elsewhere" if self.is_elsewhere else self.recipe.summary

    @property
    def generation(self) -> Generation:
        """How pictures are drawn."""
        return Generation() if self.is_elsewhere else self.recipe.generation

    @property
    def model_source(self) -> ModelSource:
        return self.question.model if self.is_elsewhere else ModelSource(str(self.folder / "model"))

    @property
    def train_source(self) -> ImageSource:
        if self.is_elsewhere:
            return self.question.train
        data = self.recipe.data
        chosen = data.train, data.select, data.subset, data.crop, data.size, data.channels
        return ImageSource(*chosen, memory=self.remembered)

    @cached_property
    def remembered(self) -> Remembered:
        """What was found in image files, so that none is read again that has not changed."""
        return Remembered(self.features / "images.json")

    @property
    def usual_method(self) -> str | None:
        """The methods of its recipe, or those that were asked for last."""
        if self.is_elsewhere:
            return ",".join(one.name for one in self.question.methods)
        return self.recipe.attribution.method

    @property
    def features(self) -> Path:
        """The folder of features and of all that is made of them."""
        return self.folder / "features"

    def __repr__(self) -> str:
        return "\n".join([f"Run {self.folder}: {self.summary}", *self._lines()])

    def _repr_html_(self) -> str:
        return facts(f"Run {self.folder}: {self.summary}", self.contents())

    def _lines(self) -> list[str]:
        return [f"{name.lower()}: {text}" for name, text in self.contents().items()]

    def contents(self) -> dict[str, str]:
        """Describe what the run holds: its training images, model, pictures and scores."""
        asked, pictures = self.asked, len(list((self.folder / "generated").glob("*.png")))
        methods = "" if asked is None else ", ".join(asked["facts"]["methods"])
        return {
            "Training images": f"{len(self.train_images):,} from {self.train_source.source}",
            "Model": "trained" if self.is_trained else "not trained yet",
            "Pictures": f"{pictures:,} generated" if pictures else "none generated yet",
            "Scores": "none yet" if asked is None else f"of {methods} for {self.portable(self.asked_about(asked))}",
        }

    def scores(self, method: str | None = None) -> Scores:
        """Return the scores of the last attribution, with their images; name the method if there are several.

        >>> import dtrak
        >>> dtrak.open_run("runs/digits").scores().values.shape
        (60, 1000)
        """
        asked = self.asked
        if asked is None:
            raise UsageError(f"{self.folder} has no scores yet: `dtrak attribute {self.folder}` makes them")
        found = Scores.load(self.folder / "scores.npz", method)
        train = self.train_images
        if found.held is None:
            train = train.select(train.positions(found.train_ids, "the scores"))
        pictures = self.query_images(self.asked_about(asked))
        queries = pictures.select(pictures.positions(found.query_ids, "the scores"))
        return replace(found, train=train, queries=queries)

    @classmethod
    def create(cls, folder: str | Path, recipe: Recipe, subset: str | None = None, check: bool = True) -> "Run":
        """Start a run, or open one whose model is trained in the same way on the same subset (a file of ids).

        If it is opened, the recipe replaces the stored one. Nothing is written unless the recipe's images can be read
        and, with `check`, its model can be built.
        """
        if subset is not None:
            recipe = recipe.with_subset(subset)
        ids = None if recipe.data.subset is None else "".join(f"{one}\n" for one in read_ids(recipe.data.subset))
        run = cls(Path(folder), recipe)
        path, text = run.folder / "recipe.yaml", dump_recipe(recipe if ids is None else recipe.with_subset(SUBSET))
        if os.path.exists(path):
            run._check_same(ids)
            if text not in (path.read_text(encoding="utf-8"), dump_recipe(load_recipe(str(path)))):
                write_text(path, text)
            return cls.open(folder)
        run.check_free(ids)
        if check:
            run.check_recipe()
        if check and not recipe.family.makes_new_weights:
            run.new_model()  # to check that the existing weights can be loaded
        if ids is not None:
            write_text(run.folder / SUBSET, ids)
        write_json(run.folder / "run.json", versions())
        write_text(path, text)
        return run

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """Open the run in a folder, and remove what killed processes have left there."""
        path = Path(folder) / "recipe.yaml"
        is_elsewhere = os.path.isfile(Path(folder) / QUESTION)
        if not is_elsewhere and not os.path.isfile(path):
            raise UsageError(
                f"{folder} is not a run: it has no recipe.yaml (`dtrak train RECIPE --out {folder}` makes one)"
            )
        opened = cls(Path(folder), None if is_elsewhere else load_recipe(str(path)))
        clear_leftovers(opened.folder)
        for name in (*FOLDERS, "generated-unfinished"):
            clear_leftovers(opened.folder / name, below=True)
        if (state := opened.folder / STATE).exists() and opened.is_trained:  # killed after the model was written
            with suppress(OSError):
                state.unlink()
        return opened

    @property
    def asked(self) -> dict[str, Any] | None:
        """Return the question of the last scores, as data; None if there are no scores or they do not say."""
        return read_question(self.folder / SCORES)

    def asked_about(self, asked: Mapping[str, Any]) -> str:
        """Return the source of the pictures of a question, as `load_images` takes it."""
        return self.located(str(asked["given"]["queries"]["source"]))

    @cached_property
    def train_images(self) -> Images:
        """The images that the model is trained on: the recipe's images, or a subset of them."""
        return self.train_source.open()

    @cached_property
    def validation_images(self) -> Images | None:
        """Images that the model was not trained on; None if the recipe names none."""
        source = self.validation_source
        return None if source is None else source.open()

    @property
    def validation_source(self) -> ImageSource | None:
        data = None if self.is_elsewhere else self.recipe.data
        if data is None or data.validation is None:
            return None
        return self.query_source(data.validation, data.select_validation)

    def query_images(self, source: str, select: Selection | None = None) -> Images:
        """Load images in the shape of the training images."""
        return self.query_source(source, select).open()

    def query_source(self, source: str, select: Selection | None = None) -> ImageSource:
        """Return the source of images in the shape of the training images.

        Images that have that shape, such as generated ones, are not changed; others are cropped and resized.
        """
        train, (channels, height, width) = self.train_source, self.train_images.shape
        plain = ImageSource(source, select, channels=channels, memory=self.remembered)
        with suppress(UsageError):  # they may differ in size; other errors are raised again below
            if plain.open().shape == self.train_images.shape:
                return plain
        size = height if height == width else train.size
        return ImageSource(source, select, None, train.crop, size, channels, memory=self.remembered)

    def portable(self, source: str) -> str:
        """Return a source as a name that is valid in any working folder: relative to the run, or absolute."""
        if not os.path.exists(source):
            return source
        path, home = Path(source).resolve(), self.folder.resolve()
        return str(path.relative_to(home) if path.is_relative_to(home) else path)

    def located(self, portable: str) -> str:
        """Return the source that `load_images` takes, from the result of `portable`."""
        return str(self.folder / portable) if os.path.exists(self.folder / portable) else portable

    @property
    def is_trained(self) -> bool:
        """Tell whether the model exists, and no checkpoint is damaged."""
        if self.is_elsewhere:
            return True
        return holds_model(self.folder / "model") and all(
            map(holds_model, (self.folder / "checkpoints").glob("step-*"))
        )

    def model(self) -> DiffusionModel:
        """Load the trained model."""
        self.check_trained()
        return self.model_source.open(self.train_images.shape)

    def check_trained(self) -> None:
        """Refuse a run without a model."""
        folder = self.folder / "model"
        if not self.is_elsewhere and not holds_model(folder):
            problem = f"{folder} is empty or damaged" if folder.exists() else f"{self.folder} has no model yet"
            raise UsageError(f"{problem}: `dtrak train {self.folder}/recipe.yaml --out {self.folder}` makes it")

    def checkpoint(self, name: str) -> Path:
        """Return the folder of a checkpoint, by its name in checkpoints/, by its number of steps, or by its path."""
        known = self.folder / "checkpoints"
        for folder in (known / name, known / f"step-{name:0>6}", Path(name)):
            if folder.name and holds_model(folder):
                return folder
        names = ", ".join(sorted(path.name for path in known.glob("step-*"))) or "none"
        raise UsageError(f"checkpoint {name}: no model of this name; {known} holds {names}")

    def check_model_is_the_recipes(self, model: DiffusionModel) -> None:
        """Refuse a run whose `model` differs from the one that its recipe makes, as retraining would make another."""
        recipe = self.recipe
        difference = recipe.family.difference(model, recipe.model, self.train_images.shape, recipe.name)
        if difference is not None:
            name, found, wanted = difference
            raise UsageError(
                f"{self.folder}/model has {name} {found}, but {self.folder}/recipe.yaml makes it {wanted}, so that "
                "retraining would make another model: train the recipe in another folder, or correct recipe.yaml"
            )

    def new_model(self) -> DiffusionModel:
        """Make the recipe's model for the training images, with weights drawn from torch's global generator."""
        return new_model(self.recipe.model, self.train_images.shape, self.recipe.name)

    @property
    def latents(self) -> Path:
        """The folder of encoded images and prompts."""
        return self.folder / "latents"

    def check_recipe(self) -> None:
        """Check that the images can be read and the model can be built; no weights are made, and nothing is written."""
        self.recipe.family.check_buildable(self.recipe.model, self.train_images, self.recipe.name)

    def check_free(self, ids: str | None) -> None:
        """Refuse a folder that is not a run but holds files with the names of a run's files."""
        if not os.path.isdir(self.folder):
            return
        versions_of, subset = self.folder / "run.json", self.folder / SUBSET
        inside = [path for name in FOLDERS for path in self.folder.glob(f"{name}/*")]
        taken = [path.parent for path in inside if not TEMPORARY.fullmatch(path.name)]
        if versions_of.exists() and '"dtrak"' not in versions_of.read_text(errors="replace"):
            taken.append(versions_of)
        if ids is not None and subset.exists() and subset.read_text(errors="replace") != ids:
            taken.append(subset)
        if taken:
            raise UsageError(
                f"{self.folder} is not a run, but has {taken[0].name}, which is not dtrak's: give another --out"
            )

    def check_folder(self) -> None:
        """Refuse a folder that holds a run of another model, or files that are not those of a run."""
        subset = self.recipe.data.subset
        ids = None if subset is None else "".join(f"{one}\n" for one in read_ids(subset))
        if os.path.exists(self.folder / "recipe.yaml"):
            self._check_same(ids)
        else:
            self.check_free(ids)

    def _check_same(self, ids: str | None) -> None:
        """Refuse a run whose model is trained in another way, or on another subset."""
        stored = Run.open(self.folder).recipe
        difference = first_difference(stored.training_fields(), self.recipe.training_fields())
        if difference is not None:
            field, found, wanted = difference
            raise UsageError(
                f"{self.folder} was made with {field} {found}, not {wanted}: give another --out, or remove it"
            )
        if (None if stored.data.subset is None else Path(stored.data.subset).read_text()) != ids:
            raise UsageError(
                f"{self.folder} was made with another subset than {self.recipe.data.subset or 'all images'}: "
                "give another --out, or remove it"
            )


def open_run(folder: str | Path) -> Run:
    """Open the run in a folder, as `dtrak run`, `dtrak train` or `dtrak demo` made it.

    >>> import dtrak
    >>> print(dtrak.open_run("runs/digits"))
    Run runs/digits: a small DDPM on scikit-learn's embedded 8×8 digits; the demo, a few minutes on two cores
    training images: 1,000 from digits:train
    model: trained
    pictures: 60 generated
    scores: of step-trak for generated
    """
    check_type("run", folder, (str, Path), "the folder of a run")
    return Run.open(folder)


def holds_model(folder: Path) -> bool:
    """Tell whether a folder holds undamaged weights of a model and their settings; nothing large is read."""
    configs = ("unet/config.json", "config.json", "dtrak.json", "adapter_config.json")  # of networks and of LoRAs
    places = [path for path in (folder, folder / "unet") if path.is_dir()]
    weights = [file for place in places for file in place.iterdir() if file.suffix in (".safetensors", ".bin")]
    return bool(weights) and any((folder / name).is_file() for name in configs) and all(map(_is_whole, weights))


def _is_whole(weights: Path) -> bool:
    """Tell whether a file of weights is complete, as far as its size shows."""
    from safetensors import SafetensorError, safe_open

    if weights.suffix != ".safetensors" or not weights.is_file():
        return weights.is_file() and weights.stat().st_size > 0
    try:
        with safe_open(weights, "numpy"):  # it compares the header with the file's size
            return True
    except (OSError, SafetensorError):
        return False


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages on which the numbers depend."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
