"""Projected gradients of one or several objectives, computed with one model or with each of several.

Gradients that several methods need are computed once and kept in one store.
"""

import re
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtrak.contracts import Kernel, Vectors
from dtrak.devices import total_memory
from dtrak.errors import UsageError
from dtrak.features.settings import FeatureSettings
from dtrak.features.store import Cost, FeatureStore
from dtrak.inputs.arrays import KernelVectors, TrainingKernel
from dtrak.inputs.needs import GradientKind, objectives_of, rule_of
from dtrak.inputs.outcomes import benchmark_of
from dtrak.inputs.task import Source, Task
from dtrak.kernels import KERNELS
from dtrak.kernels.damping import automatic, compared_objective
from dtrak.kernels.kernel_cache import KeptFit, kept_ridge
from dtrak.kernels.ridge import Eigen
from dtrak.kernels.rows import ArrayRows, CopyRows, OneRow
from dtrak.methods.method import Gradients, Kronecker, Method, Ridge
from dtrak.noise import stable_hash

if TYPE_CHECKING:
    from dtrak.features.inputs import ModelInputs
    from dtrak.features.trajectories import Trajectories
    from dtrak.models import DiffusionModel

Stores = dict[str, FeatureStore]  # by objective
Fitted = tuple[Callable[[], Kernel], KeptFit[Eigen] | None]  # how to fit a kernel, and what keeps it on disk
DRAWS_AT_ONE_STEP = 10  # how many noises journey-trak takes if it scores one timestep alone
MODELS = {  # what they need, and the first part of what they cost, in words
    "final": ("the model", ""),
    "checkpoints": ("checkpoints", "4 × "),
    "retrained": ("models retrained on halves", "S trainings and S × "),
}
BYTES_ON_DISK, BYTES_IN_MEMORY = 4, 24  # for each parameter, of the whole gradient of a training image and of a query


@dataclass(frozen=True)
class GradientSource(Source):
    """Each image has one gradient, or one for each of its noised copies."""

    method: Method
    of: Gradients  # what the method needs

    @property
    def kind(self) -> GradientKind:
        return GradientKind.of(self.method, self.of)

    @property
    def needs(self) -> str:  # type: ignore[override]
        return MODELS[self.of.models][0] + " and the queries' seeds" * (self.of.queries == "trajectories")

    @property
    def cost(self) -> str:  # type: ignore[override]
        if self.kind.whole:
            return "3 × K gradients per image, kept whole"
        several = f"{len(self.of.objectives)} × " * (len(self.of.objectives) > 1)
        residuals = ", K predictions per training image" * self._has_residuals
        return f"{MODELS[self.of.models][1]}{several}K gradients per image{residuals}"

    @property
    def _has_residuals(self) -> bool:
        return isinstance(self.method.kernel, Ridge) and self.method.kernel.residuals

    def check(self, task: Task) -> None:
        members(task, self.of.models)
        if self.of.queries == "trajectories":
            _trajectories(task).check()
        if self.kind.whole:
            _check_whole(task)

    def inputs(self, task: Task) -> Iterator[Any]:
        needs, kernel = self.of, self.method.kernel
        every = objectives_of(needs, task.settings.objective)
        for member in range(len(members(task, needs.models))):
            train, asked = train_stores(task, self.kind, member), query_stores(task, self.kind, member, needs.queries)
            first: TrainingKernel | None = None
            for objectives in [every] if needs.copies == "apart" else [(one,) for one in every]:
                rows = CopyRows([train[one] for one in objectives], needs.unit)
                queries = CopyRows([asked[one] for one in objectives], needs.unit)[:]
                residuals = _residuals(task, self.kind) if self._has_residuals else None  # [N, copies]
                if kernel is None:
                    yield Vectors(rows, queries)
                elif not isinstance(kernel, Ridge) or kernel.pooled:
                    training = self._training(task, member, rows, objectives, first)
                    first = first or training
                    yield KernelVectors(rows, queries, training, None if residuals is None else residuals.mean(1))
                else:
                    for copy in range(rows.shape[0]):
                        one, by_rule = OneRow(rows, copy), partial(automatic, kernel.damping, objective=objectives[0])
                        training = TrainingKernel(partial(KERNELS["ridge"], one), by_rule, kernel.damping)
                        own = None if residuals is None else residuals[:, copy % residuals.shape[1]]
                        yield KernelVectors(one, queries[:, [copy]], training, own)

    def _training(
        self, task: Task, member: int, rows: CopyRows, objectives: tuple[str, ...], first: TrainingKernel | None
    ) -> TrainingKernel:
        """Return the kernel of some objectives. It is kept in memory if there is one model; several could fill it."""
        rule, other, is_final = rule_of(self.method), compared_objective(objectives[0]), self.of.models == "final"
        train = train_stores(task, self.kind, member)
        one_damping = first is None and len(task.dampings) == 1 and not task.dampings[0].needs_eigenvalues(rule)
        about = self.kind, self.of.unit, self.method.kernel, one_damping

        def make() -> TrainingKernel:
            # made here, as it looks at every file of the stores: a search in an index asks again for each picture
            def fitted(rows: CopyRows, objectives: tuple[str, ...]) -> Fitted:
                fit, kept = self._fit(task, member, rows, objectives, one_damping)
                key = ("kernel", *about, objectives)
                return partial(task.once_for_training, key, fit) if is_final else fit, kept

            fit, kept = fitted(rows, objectives)
            fit_other: Callable[[], Kernel] | None = None
            compared = None if first is None else first.kept
            if rule == "agreement" and first is None and other in train:
                fit_other, compared = fitted(CopyRows([train[other]], self.of.unit), (other,))
            by_rule = partial(automatic, rule, copies=rows.shape[0], objective=objectives[0], other=fit_other)
            has_rule = fit_other is not None or rule != "agreement"
            return TrainingKernel(fit, by_rule, rule, has_rule, first, kept, compared)

        led_by = None if first is None else objectives_of(self.of, task.settings.objective)[0]
        return task.once_for_training(("damped kernel", *about, objectives, led_by), make) if is_final else make()

    def _fit(self, task: Task, member: int, rows: CopyRows, objectives: tuple[str, ...], one_damping: bool) -> Fitted:
        """Return how the method's kernel is fitted to rows. Kernels of this package are kept on disk."""
        stores = [train_stores(task, self.kind, member)[one] for one in objectives]
        match self.method.kernel:
            case Ridge():
                length = "unit" if self.of.unit else "own"
                folder = stores[0].folder.parent / "kernels" / "-".join([length, *(one.folder.name for one in stores)])
                depends_on = (length, *(one.digest for one in stores))
                return kept_ridge(folder, depends_on, rows, one_damping)
            case Kronecker():
                return partial(_gauss_newton, task, self.kind, stores[0], rows), None
            case str(name):
                return partial(KERNELS.choose(name), rows), None
            case fit:
                assert fit is not None
                return partial(fit, rows), None

    def feature_cost(self, task: Task) -> Cost:
        """Return the cost of the features behind the inputs. Objectives that share passes share their cost."""
        objectives = objectives_of(self.of, task.settings.objective)
        compared = {compared_objective(objectives[0])} & set(_compared(task, self.kind))
        total = Cost()
        for member in range(len(members(task, self.of.models))):
            train, asked = train_stores(task, self.kind, member), query_stores(task, self.kind, member, self.of.queries)
            total += sum((train[one].cost for one in {*objectives, *compared}), Cost())
            total += sum((asked[one].cost for one in objectives), Cost())
        return total

    def seconds(self, task: Task) -> float:
        cost = self.feature_cost(task)
        return cost.gradients + cost.projection

    def retrained_models(self, task: Task) -> int:
        return len(members(task, self.of.models)) if self.of.models == "retrained" else 0


def _check_whole(task: Task) -> None:
    """Refuse more parameters than the disk or the memory can hold."""
    numbers = sum(value.numel() for value in task.model.parameters(task.settings.parameters).values())
    there = next(folder for folder in (task.folder, *task.folder.absolute().parents) if folder.exists())
    disk, memory = shutil.disk_usage(there).free, total_memory(task.model.device) / 2
    for images, size, room, where in (
        (task.train, BYTES_ON_DISK, disk, "on the disk"),
        (task.queries, BYTES_IN_MEMORY, memory, "in half of the memory"),
    ):
        if size * numbers * len(images) > room:
            raise UsageError(
                f"whole gradients of {len(images):,} images and {numbers:,} parameters take "
                f"{size * numbers * len(images) / 1e9:,.1f} GB, but there are {room / 1e9:,.1f} GB {where}: "
                "give fewer --parameters"
            )


def _gauss_newton(task: Task, kind: GradientKind, store: FeatureStore, rows: CopyRows) -> Kernel:
    """Return the kernel of the network's Gauss–Newton matrix."""
    from dtrak.features.curvature import kept_directions
    from dtrak.kernels.kronecker import Kronecker

    (settings, _), images = _settings_of(task, kind), task.train_inputs
    if settings.skip_bad and (bad := set(store.left_out())):
        images = images.select([row for row in range(len(images)) if row not in bad])
    return Kronecker(kept_directions(task.model, images, settings, task.folder), rows)


def _residuals(task: Task, kind: GradientKind) -> NDArray[np.float32]:
    """Return how far predictions for the copies of training images are from their targets, [N, copies]."""
    from dtrak.features.residuals import residuals_of

    settings, _ = _settings_of(task, kind)
    make = partial(residuals_of, task.model, task.train_inputs, settings, task.folder)
    return task.once_for_training(("residuals", kind.timesteps), make)


def _compared(task: Task, kind: GradientKind) -> tuple[str, ...]:
    """Return the objectives that only training images need: `auto` damping compares with them."""
    needed = task.needed[kind]
    return tuple(one for one in needed.train if one not in needed.all_of_queries)


def members(task: Task, models: str) -> list[Path | None]:
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
        case _:
            raise ValueError(models)


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


def with_stores(task: Task, source: GradientSource, folder: Path, names: Collection[str] = ()) -> Task:
    """Return the task with the features of training images that a folder has; the images themselves are not needed.

    `names` are those of the stores; without them, there must be only one store for each objective.
    """
    stores = {
        one: _only_store(folder, f"train-{one}", source.kind.apart, names) for one in task.needed[source.kind].train
    }
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


def without_queries(task: Task, source: GradientSource) -> Task:
    """Return the task with zeros as the features of one query, so that no model is needed."""
    stores = train_stores(task, source.kind, 0)
    nothing = {one: ArrayRows(np.zeros((1, *store.shape), np.float32)) for one, store in stores.items()}
    return replace(task, _made={("queries", source.kind, 0, source.of.queries): nothing})


def fill_share(task: Task) -> None:
    """Compute the task's share of all features of training images that its methods need, and nothing else."""
    for kind in task.needed:
        for member in range(len(members(task, kind.models))):
            train_stores(task, kind, member)


def train_stores(task: Task, kind: GradientKind, member: int) -> Stores:
    """Return the features of the training images, computed with one model, for all methods that need them."""
    make = partial(_featurize, task, kind, member, task.train_inputs, task.needed[kind].train, task.folder, "train")
    return task.once_for_training(("train", kind, member), make)


def query_stores(task: Task, kind: GradientKind, member: int, queries: str) -> Stores:
    """Return the features of the queries as they are, or along their sampling trajectories."""
    needed, folder = task.needed[kind], task.folder_of_queries

    def make() -> Stores:
        if queries == "images":
            name = f"queries-{task.query_inputs.fingerprint[:8]}"  # other prompts, other features
            return _featurize(task, kind, member, task.query_inputs, needed.queries, folder, name)
        trajectories, draws = _trajectories(task), None if task.settings.step is None else DRAWS_AT_ONE_STEP
        name = f"journeys-{trajectories.fingerprint[:8]}"
        return _featurize(task, kind, member, trajectories, needed.trajectories, folder, name, draws)

    return task.once(("queries", kind, member, queries), make)


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

    model, path = task.model, members(task, kind.models)[member]
    settings, own_folder = _settings_of(task, kind)
    if path is not None:
        model = _loaded(task, path)
        folder = folder / f"{path.name}-{model.fingerprint[:8]}"  # models of several folders can have the same name
        settings = replace(settings, projection_seed=stable_hash(f"{settings.seed} {path.name}") >> 1)
    if draws is not None:
        settings = replace(settings, draws=draws)
    share, folder = task.share if name == "train" else None, folder / own_folder
    return featurize(model, images, objectives, settings, folder, name, task.engine, apart=kind.apart, share=share)


def _settings_of(task: Task, kind: GradientKind) -> tuple[FeatureSettings, str]:
    """Return the settings of a kind of gradients, and a folder for those that `featurize` would not make by itself."""
    from dtrak.models.diffusion import usual_parameters

    settings, words = task.settings.features, list[str]()
    timesteps, layers, projection = ("visible", "later", "factored") if kind.apart else ("uniform", "usual", "sketch")
    if kind.timesteps != timesteps and str(settings.timesteps).strip().isdecimal():
        settings = replace(settings, timesteps=f"{kind.timesteps}:{settings.timesteps}")
        words.append(kind.timesteps)
    if kind.layers != layers and settings.parameters is None:
        chosen, usual = (usual_parameters(task.model.network, one == "later") for one in (kind.layers, layers))
        if chosen != usual:
            settings = replace(settings, parameters=chosen)
            words.append("later-layers" if kind.layers == "later" else "all-layers")
    if kind.whole:
        settings = replace(settings, projection="identity")
        words.append("whole")
    elif kind.projection != projection and settings.projection is None:
        settings = replace(settings, projection=kind.projection)
        words.append(kind.projection)
    return settings, "-".join(words)


def _loaded(task: Task, path: Path) -> "DiffusionModel":
    """Return one of several models. Only the last one that was loaded stays in memory."""
    from dtrak.models import load_model

    kept: dict[Path, DiffusionModel] = task.once_for_training("loaded model", dict)
    if path not in kept:
        kept.clear()
        kept[path] = load_model(str(path)).fitted_to(task.train.shape).to(task.model.device)
    return kept[path]
