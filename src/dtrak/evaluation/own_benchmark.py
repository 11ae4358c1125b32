"""A benchmark for a training loop of one's own: dtrak says which images each model is trained on, and keeps its losses.

    own = OwnBenchmark.begin("bench", model, train, {"validation": queries}, subsets=64)
    for subset, seed in own.missing():
        own.add(subset, seed, my_training(own.rows(subset), seed))

The folder is that of `dtrak evaluate lds --benchmark` (see `dtrak.attribution.benchmark_folder`). A loop that is
stopped goes on with the models that are missing.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save_file

from dtrak.attribution.attribute import Data, Model
from dtrak.attribution.benchmark_folder import QUERIES
from dtrak.attribution.scores import Scores
from dtrak.errors import UsageError, check_known
from dtrak.evaluation.benchmark_making import as_arrays, write_losses
from dtrak.evaluation.counterfactual import highest
from dtrak.evaluation.outputs import model_outputs
from dtrak.evaluation.training_jobs import random_subsets, read_arrays
from dtrak.features.model_inputs import ModelInputs
from dtrak.files import as_npz, whole_folder, write_bytes, write_json
from dtrak.gradients.copies import select_timesteps
from dtrak.images.images import Images
from dtrak.images.objects import images_from
from dtrak.models import DiffusionModel, save_model
from dtrak.models.model_source import ModelSource
from dtrak.runs.run import versions


@dataclass(frozen=True, eq=False)
class OwnBenchmark:
    """A benchmark folder that a training loop fills.

    >>> import dtrak
    >>> from dtrak.evaluation import OwnBenchmark
    >>> model, train = dtrak.load_model("runs/digits/model"), dtrak.load_images("digits:train").first(20)
    >>> own = OwnBenchmark.begin("bench", model, train, {"validation": train.first(2)}, subsets=2, timesteps=1)
    >>> for subset, seed in own.missing():
    ...     rows = own.rows(subset)  # train a model on these images, with this seed
    ...     own.add(subset, seed, model)
    >>> own.missing()
    []
    """

    folder: Path
    masks: NDArray[np.bool_]  # [M, N]: which images each subset has
    seeds: int  # trainings on each subset
    queries: Mapping[str, Images]
    timesteps: tuple[int, ...]
    noises: int

    @classmethod
    def begin(
        cls,
        folder: str | Path,
        model: Model,
        train: Data,
        queries: Mapping[str, Data],
        *,
        subsets: int = 64,
        fraction: float = 0.5,
        seeds: int = 1,
        seed: int = 0,
        timesteps: int | str = 100,
        noises: int = 1,
    ) -> "OwnBenchmark":
        """Begin a benchmark for a model and its training images, or open one that was begun in the same way.

        `queries` has sets named "validation" and "generated", or one of them. The loss of a query is L_Simple over
        `timesteps`, with so many `noises` at each.
        """
        place, found = Path(folder), opened(model)
        images = images_from(train, name="train")
        asked = {name: images_from(one, name=name) for name, one in queries.items()}
        for name in asked:
            check_known("queries", name, list(QUERIES))
        if not asked:
            raise UsageError(f"queries: give images as {' or '.join(map(repr, QUERIES))}")
        found = found.fitted_to(images.shape)
        for one in (images, *asked.values()):
            found.check_fits(one.shape, one.source)
        masks = random_subsets(subsets, len(images), fraction, images.columns.get("label"), seed)
        record = {
            "name": place.name,
            "made by": "one's own training loop",
            "train": images.fingerprint,
            "queries": {name: one.fingerprint for name, one in asked.items()},
            "model": found.fingerprint,
            "subsets": subsets,
            "fraction": fraction,
            "seeds": seeds,
            "seed": seed,
            "timesteps": str(timesteps),
            "noises": noises,
        }
        path = place / "benchmark.json"
        if path.exists():
            before = json.loads(path.read_text(encoding="utf-8"))
            for name, value in record.items():
                if before.get(name) != value:
                    raise UsageError(
                        f"{place} was begun with {name} {before.get(name)}, not {value}: give another folder"
                    )
        else:
            _save(found, place / "model")
            for name, one in {"train": images, **asked}.items():
                write_bytes(place / f"{name}.npz", as_npz(as_arrays(ModelInputs(one))))
            write_json(path, record | {"versions": versions()})
        return cls(place, masks, seeds, asked, select_timesteps(timesteps, found.process.timesteps), noises)

    def missing(self) -> list[tuple[int, int]]:
        """Return the subset and the seed of every model whose losses are not there yet."""
        wanted = {f"outputs/{name}/simple": (len(images),) for name, images in self.queries.items()}

        def is_whole(job: tuple[int, int]) -> bool:
            arrays = read_arrays(self._path(*job)) or {}
            return all(name in arrays and arrays[name].shape == shape for name, shape in wanted.items())

        every = [(subset, seed) for seed in range(self.seeds) for subset in range(len(self.masks))]
        return [job for job in every if not is_whole(job)]

    def rows(self, subset: int) -> NDArray[np.int64]:
        """Return the positions of the training images of a subset."""
        return np.flatnonzero(self.masks[subset])

    def add(self, subset: int, seed: int, model: Model) -> None:
        """Keep the losses of the queries under a model that was trained on a subset from a seed.

        After the last one, the benchmark is complete.
        """
        found = opened(model).fitted_to(next(iter(self.queries.values())).shape)
        outputs = {
            f"outputs/{name}/{objective}": values
            for name, images in self.queries.items()
            for objective, values in model_outputs(found, images, self.timesteps, self.noises).items()
        }
        write_bytes(self._path(subset, seed), as_npz(outputs))
        if not self.missing():
            write_losses(self.folder, self.masks, self.seeds, lambda *job: read_arrays(self._path(*job)) or {})

    def _path(self, subset: int, seed: int) -> Path:
        return self.folder / "jobs" / f"subset-{subset:03d}-seed-{seed}.npz"


def opened(model: Model) -> DiffusionModel:
    """Return a model that was given by its name, or as an object."""
    return ModelSource(str(model) if isinstance(model, str | Path) else model).open()


def rows_without(scores: Scores, query: int, remove: int) -> NDArray[np.int64]:
    """Return the positions of the training images without the `remove` highest-scoring ones of a query.

    A counterfactual trains on these from the same seed, and draws the picture again.

    >>> import dtrak
    >>> from dtrak.evaluation import rows_without
    >>> scores = dtrak.Scores.load("runs/digits/scores.npz")
    >>> len(rows_without(scores, query=0, remove=200))
    800
    """
    return np.flatnonzero(~highest(scores.values[query : query + 1], remove)[0])


def _save(model: DiffusionModel, folder: Path) -> None:
    """Save a model that `load_model` opens; of a wrapped network of another class, save the weights."""
    is_unet = type(model.network).__name__ == "UNet2DModel" and model.autoencoder is None
    if is_unet or model.has_lora:
        save_model(model, folder)
    else:
        with whole_folder(folder) as temporary:
            weights = {name: value.contiguous().cpu() for name, value in model.network.state_dict().items()}
            save_file(weights, temporary / "model.safetensors")
            write_json(temporary / "config.json", {"_class_name": type(model.network).__name__})
