"""Projected gradients of one or several objectives, computed with one model or with each of several.

Gradients that several methods need are computed once and kept in one store.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray

from dtrak.errors import UsageError
from dtrak.features.store import Cost, FeatureStore
from dtrak.inputs.arrays import TrainingKernel, Vectors
from dtrak.inputs.keeping import kept_fit, kept_gram, kept_pooled
from dtrak.inputs.needs import GradientKind, GradientUse, Models
from dtrak.inputs.outcomes import benchmark_of
from dtrak.inputs.task import Source, Task
from dtrak.kernels.copies import CopyFeatures, OneCopy
from dtrak.kernels.damping import (
    Automatic,
    Damping,
    compared_objective,
    damping_by_agreement,
    damping_by_rows,
    damping_by_trace,
)
from dtrak.kernels.kept import KeptFit
from dtrak.kernels.preconditioner import Preconditioner
from dtrak.kernels.ridge import decompose
from dtrak.kernels.solved import solve
from dtrak.noise import stable_hash

if TYPE_CHECKING:
    from dtrak.features.inputs import ModelInputs
    from dtrak.features.trajectories import Trajectories
    from dtrak.models import DiffusionModel

Stores = dict[str, FeatureStore]  # by objective
FEW_ROWS = 0.4  # the decomposition of so many rows, as a share of k, takes as long as the Cholesky factor of G [k, k]
DRAWS_AT_ONE_STEP = 10  # how many noises journey-trak takes if it scores one timestep alone
MODELS: dict[Models, tuple[str, str]] = {  # what they need, and the first part of what they cost, in words
    "final": ("the model", ""),
    "checkpoints": ("checkpoints", "4 × "),
    "retrained": ("models retrained on halves", "S trainings and S × "),
}


@dataclass(frozen=True)
class Gradients(Source):
    """Each image is a vector, or one vector for each of its noised copies: its projected gradients."""

    objective: str = "simple"
    any_objective: bool = False  # whether the user may choose another one
    also: tuple[str, ...] = ()  # their scores are averaged with those of the first objective, which also sets their λ
    models: Models = "final"
    apart: bool = False  # whether every noised copy has its own gradient; one kernel then has all copies and objectives
    every_layer: bool = False  # whether they are of all layers of a U-Net, even if copies are apart
    along_trajectory: bool = False  # whether gradients of queries are taken along their sampling trajectories
    preconditioner: str = "ridge"

    @property
    def needs(self) -> str:  # type: ignore[override]
        return MODELS[self.models][0] + " and the queries' seeds" * self.along_trajectory

    @property
    def cost(self) -> str:  # type: ignore[override]
        return MODELS[self.models][1] + f"{1 + len(self.also)} × " * bool(self.also) + "K gradients per image"

    @property
    def uses_retrained(self) -> bool:  # type: ignore[override]
        return self.models == "retrained"

    def objectives(self, chosen: str | None) -> tuple[str, ...]:
        """Return the objectives. The first is the one that λ is set for: the `chosen` one if the user may choose."""
        first = chosen if chosen is not None and self.any_objective else self.objective
        return tuple(dict.fromkeys((first, *self.also)))

    def use(self, chosen: str | None, damped: bool) -> GradientUse:
        """Return how a method uses these gradients; `damped` says whether λ matters for it."""
        return GradientUse(self.kind, self.objectives(chosen), self.along_trajectory, damped)

    @property
    def kind(self) -> GradientKind:
        return GradientKind(self.models, self.apart, every_layer=self.every_layer)

    def check(self, task: Task) -> None:
        members(task, self.models)
        if self.along_trajectory:
            _trajectories(task).check()

    def inputs(self, task: Task) -> Iterator[Vectors]:
        for member in range(len(members(task, self.models))):
            if self.apart:
                yield from self._of_copies(task, member)
                continue
            first: TrainingKernel | None = None
            for objective in self.objectives(task.settings.objective):
                vectors = self._vectors(task, member, objective, first)
                first = first or vectors.training
                yield vectors

    def feature_cost(self, task: Task) -> Cost:
        """Return the cost of the features behind the inputs. Objectives that share passes share their cost."""
        of_each = [
            cost
            for member in range(len(members(task, self.models)))
            for cost in self._costs(task, member, self.objectives(task.settings.objective))
        ]
        return sum(of_each, Cost())

    def _costs(self, task: Task, member: int, objectives: tuple[str, ...]) -> Iterator[Cost]:
        """Yield the cost of each store that these inputs need of one model."""
        train = train_stores(task, self.kind, member)
        compared = compared_objective(objectives[0])
        of_train = {*objectives, *([compared] if compared in _compared(task, self.kind) else [])}
        yield from (train[one].cost for one in of_train)
        queries = query_stores(task, self.kind, member, self.along_trajectory)
        yield from (queries[one].cost for one in objectives)

    def seconds(self, task: Task) -> float:
        cost = self.feature_cost(task)
        return cost.gradients + cost.projection

    def retrained_models(self, task: Task) -> int:
        return len(members(task, self.models)) if self.uses_retrained else 0

    def _vectors(self, task: Task, member: int, objective: str, first: TrainingKernel | None) -> Vectors:
        train = train_stores(task, self.kind, member)
        queries = query_stores(task, self.kind, member, self.along_trajectory)
        return Vectors(train[objective], queries[objective].numpy(), self._training(task, train, objective, first))

    def _training(self, task: Task, train: Stores, objective: str, first: TrainingKernel | None) -> TrainingKernel:
        """Return the kernel of an objective. It is kept if there is one model; several could fill the memory."""

        def make() -> TrainingKernel:
            # made here, as it looks at every file of the stores: a search in an index asks again for each picture
            fits = {of: kept_fit(self.preconditioner, store) for of, store in train.items()}

            def kernel(of: str) -> Preconditioner:
                key = ("kernel", self.preconditioner, of)
                return task.once_for_training(key, fits[of]) if self.models == "final" else fits[of]()

            other = compared_objective(objective)
            compares = first is None and other in train
            automatic = partial(damping_by_agreement, compared=partial(kernel, other)) if compares else None
            kept = {of: fit if isinstance(fit, KeptFit) else None for of, fit in fits.items()}
            compared = kept[other] if compares else None if first is None else first.kept
            return TrainingKernel(partial(kernel, objective), automatic, first, kept[objective], compared)

        if self.models != "final":
            return make()
        first_objective = None if first is None else self.objectives(task.settings.objective)[0]
        return task.once_for_training(("damped kernel", self.preconditioner, objective, first_objective), make)

    def _of_copies(self, task: Task, member: int) -> Iterator[Vectors]:
        """Yield one input with a kernel of all copies and objectives, or for each copy an input with its own kernel."""
        settings, objectives = task.settings, self.objectives(task.settings.objective)
        stores = train_stores(task, self.kind, member)
        features = CopyFeatures([stores[one] for one in objectives], settings.length == "unit")
        scored = features if settings.copies == "apart" else features.mean()
        of_queries = query_stores(task, self.kind, member, self.along_trajectory)
        queries = scored.prepared([torch.from_numpy(of_queries[one].numpy()) for one in objectives]).numpy()

        def rule(copies: int) -> Automatic:
            if settings.sharpening == "squared":
                return partial(damping_by_trace, copies=copies, objective=objectives[0])
            return partial(damping_by_rows, copies=copies)

        if settings.kernel == "per-copy":
            for copy in range(queries.shape[1]):
                rows = OneCopy(features, copy)
                yield Vectors(rows, queries[:, copy], TrainingKernel(partial(decompose, rows), rule(1)))
            return
        copies, _ = features.shape

        only = _only_damping(task) if _is_quick_to_solve(features) else None
        used = [stores[one] for one in objectives]

        def make() -> TrainingKernel:
            if only is None:
                return TrainingKernel(kept_pooled(used, features, scored), rule(copies))
            return TrainingKernel(partial(_solved, used, features, scored, only, rule(copies)), rule(copies))

        key = ("pooled kernel", objectives, settings.length, settings.copies, only)
        fitted = task.once_for_training(key, make) if self.models == "final" else make()
        yield Vectors(scored, queries, fitted)


def _only_damping(task: Task) -> Damping | None:
    """Return the damping if scores are asked for a single one, whose λ can be found without eigenvalues."""
    by_eigenvalues = ("spectrum",) if task.settings.sharpening == "squared" else ("spectrum", "auto")
    return task.dampings[0] if len(task.dampings) == 1 and task.dampings[0].kind not in by_eigenvalues else None


def _is_quick_to_solve(features: CopyFeatures) -> bool:
    """Return whether a Cholesky factor of G [k, k] is no more work than the decomposition of the smaller matrix."""
    copies, dim = features.shape
    return len(features) * copies >= FEW_ROWS * dim


def _solved(
    stores: Sequence[FeatureStore], features: CopyFeatures, scored: CopyFeatures, damping: Damping, rule: Automatic
) -> Preconditioner:
    """Return the kernel for one damping; the decomposed one if λ is less than the rounding errors of G."""
    gram = kept_gram(stores, features)()
    found = damping.absolute(cast(Preconditioner, gram), rule)  # only its trace and its number of images are asked for
    try:
        return solve(gram, found, scored)
    except np.linalg.LinAlgError:
        return kept_pooled(stores, features, scored)()


def _compared(task: Task, kind: GradientKind) -> tuple[str, ...]:
    """Return the objectives that only training images need: `auto` damping compares with them."""
    needed = task.needed[kind]
    return tuple(one for one in needed.train if one not in needed.all_of_queries)


def members(task: Task, models: Models) -> list[Path | None]:
    """Return the folders of the models that gradients are computed with; None stands for the task's own model."""
    match models:
        case "final":
            return [None]
        case "checkpoints":
            return [*evenly_spaced(task.settings.checkpoints, task.settings.checkpoint_count)]
        case "retrained":
            benchmark = benchmark_of(task)
            subsets = task.settings.retrained_count or len(benchmark.masks)
            found = [path for subset, path in benchmark.retrained.items() if subset < subsets]
            if not found:
                raise UsageError(f"{benchmark.folder} did not keep its retrained models: make it with --keep-models")
            return [*found[: task.settings.ensemble_size]]


def evenly_spaced(folder: Path | None, count: int) -> list[Path]:
    """Return `count` evenly spaced models of a folder and always the last, ordered by the numbers in their names."""
    if folder is None:
        raise UsageError("there are no checkpoints of the training: give their folder as --checkpoints")
    folder = Path(folder)
    found = [path for path in folder.glob("[!.]*") if path.is_dir()]
    if not found:
        raise UsageError(f"no checkpoints in {folder}: it holds no folders of models")
    found.sort(key=lambda path: ([int(number) for number in re.findall(r"\d+", path.name)], path.name))
    ends = np.linspace(0, len(found), min(count, len(found)) + 1)[1:]
    return [found[round(end) - 1] for end in ends]


def _trajectories(task: Task) -> "Trajectories":
    from dtrak.features.trajectories import Trajectories

    wanted = task.settings
    make = partial(Trajectories, task.model, task.queries, wanted.ddim_steps, wanted.step, wanted.guidance)
    return task.once("trajectories", make)


def with_stores(task: Task, source: Gradients, folder: Path, names: Collection[str] = ()) -> Task:
    """Return the task with the features of training images that a folder has; the images themselves are not needed.

    `names` are those of the stores; without them, there must be only one store for each objective.
    """
    stores = {one: _only_store(folder, f"train-{one}", source.apart, names) for one in task.needed[source.kind].train}
    for store in stores.values():
        if missing := len(store.missing()):
            raise UsageError(
                f"{store.folder} is not complete: {missing:,} of {len(store.shards):,} files of features are missing "
                "or damaged; run the command that makes these features again"
            )
    return replace(task, _of_training={"inputs": None, ("train", source.kind, 0): stores})


def _only_store(folder: Path, name: str, apart: bool, names: Collection[str]) -> FeatureStore:
    """Return the store of this name in a folder; refuse a folder with none or several."""
    folders = [path.parent for path in folder.glob("*/part.json") if not names or path.parent.name in names]
    stores = [FeatureStore.open(one) for one in folders if one.name.rpartition("-")[0] == name]
    found = [store for store in stores if (len(store.shape) > 1) == apart]
    if not found:
        raise UsageError(f"no features at {folder / name}: run the command that makes them")
    if len(found) > 1:
        several = ", ".join(store.folder.name for store in found)
        raise UsageError(f"{folder} has features of several questions: move all but one of {several} away")
    return found[0]


@dataclass(frozen=True)
class NoQueries:
    """Stands for the features of queries where only those of training images are needed."""

    shape: tuple[int, ...]

    def numpy(self) -> NDArray[np.float32]:
        return np.zeros((1, *self.shape), dtype=np.float32)


def without_queries(task: Task, source: Gradients) -> Task:
    """Return the task with zeros as the features of one query, so that no model is needed."""
    stores = train_stores(task, source.kind, 0)
    nothing = {one: NoQueries(store.shape) for one, store in stores.items()}
    return replace(task, _made={("queries", source.kind, 0, source.along_trajectory): nothing})


def fill_share(task: Task) -> None:
    """Compute the task's share of all features of training images that its methods need, and nothing else."""
    for kind in task.needed:
        for member in range(len(members(task, kind.models))):
            train_stores(task, kind, member)


def train_stores(task: Task, kind: GradientKind, member: int) -> Stores:
    """Return the features of the training images, computed with one model, for all methods that need them."""
    make = partial(_featurize, task, kind, member, task.train_inputs, task.needed[kind].train, task.folder, "train")
    return task.once_for_training(("train", kind, member), make)


def query_stores(task: Task, kind: GradientKind, member: int, along_trajectory: bool) -> Stores:
    """Return the features of the queries as they are, or along their sampling trajectories."""
    needed, folder = task.needed[kind], task.folder_of_queries

    def make() -> Stores:
        if not along_trajectory:
            name = f"queries-{task.query_inputs.fingerprint[:8]}"  # other prompts, other features
            return _featurize(task, kind, member, task.query_inputs, needed.queries, folder, name)
        trajectories, draws = _trajectories(task), None if task.settings.step is None else DRAWS_AT_ONE_STEP
        name = f"journeys-{trajectories.fingerprint[:8]}"
        return _featurize(task, kind, member, trajectories, needed.trajectories, folder, name, draws)

    return task.once(("queries", kind, member, along_trajectory), make)


def _featurize(
    task: Task,
    kind: GradientKind,
    member: int,
    images: "ModelInputs | Trajectories",
    objectives: Sequence[str],
    folder: Path,
    name: str,
    draws: int | None = None,
) -> Stores:
    """Compute the features of images with one of the models. Each model has its own folder and its own projection."""
    from dtrak.features.featurizing import featurize
    from dtrak.models.diffusion import usual_parameters

    model, path = task.model, members(task, kind.models)[member]
    settings = task.settings.features
    if path is not None:
        model = _loaded(task, path)
        folder = folder / f"{path.name}-{model.fingerprint[:8]}"  # models of several folders can have the same name
        settings = replace(settings, projection_seed=stable_hash(f"{settings.seed} {path.name}") >> 1)
    if draws is not None:
        settings = replace(settings, draws=draws)
    if kind.whole:
        settings, folder = replace(settings, projection="identity"), folder / "whole"
    if kind.every_layer and settings.parameters is None:
        every, usual = (usual_parameters(model.network, apart) for apart in (False, kind.apart))
        if every != usual:
            settings, folder = replace(settings, parameters=every), folder / "all-layers"
    share = task.share if name == "train" else None
    return featurize(model, images, objectives, settings, folder, name, task.engine, apart=kind.apart, share=share)


def _loaded(task: Task, path: Path) -> "DiffusionModel":
    """Return one of several models. Only the last one that was loaded stays in memory."""
    from dtrak.models import load_model

    kept: dict[Path, DiffusionModel] = task.once_for_training("loaded model", dict)
    if path not in kept:
        kept.clear()
        kept[path] = load_model(str(path)).fitted_to(task.train.shape).to(task.model.device)
    return kept[path]
