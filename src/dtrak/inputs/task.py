"""A task: one model, its training images, the queries, and how to score. Sources make their arrays from it.

What several methods need is made once. What depends on the training images alone is shared by tasks that differ in
their queries.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dtrak.engines import Engine
from dtrak.features.store import Cost
from dtrak.images.images import Images
from dtrak.inputs.needs import GradientKind, NeededGradients
from dtrak.inputs.settings import Settings

if TYPE_CHECKING:
    from dtrak.features.inputs import ModelInputs
    from dtrak.models import DiffusionModel

# Models are imported where they are needed: diffusers takes seconds, for which no mistyped name should have to wait.

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class Task:
    """What is attributed to what, and how."""

    model: "DiffusionModel"
    train: Images
    queries: Images
    settings: Settings
    folder: Path  # keeps features
    needed: Mapping[GradientKind, NeededGradients]  # by all methods of the task
    engine: Engine | None = None  # computes gradients; this process if None
    queries_folder: Path | None = None  # keeps what is made of the queries; `folder` if None
    _made: dict[Any, Any] = field(default_factory=dict)
    _of_training: dict[Any, Any] = field(default_factory=dict)  # does not depend on the queries
    _seconds: dict[Any, float] = field(default_factory=dict)  # taken by what was made

    def with_queries(self, queries: Images, folder: Path | None = None) -> "Task":
        """The same about other queries; what is made of the training images, now or later, serves both.

        With a `folder`, all that is made of the queries is kept there and nowhere else, so that it can be removed.
        """
        self.model.check_fits(queries.shape, queries.source)
        return replace(self, queries=queries, queries_folder=folder, _made={}, _seconds={})

    def needing(self, needed: Mapping[GradientKind, NeededGradients]) -> "Task":
        """The same for methods that need these gradients."""
        return replace(self, needed=needed)

    def once(self, key: Any, make: Callable[[], Made]) -> Made:
        """What `make` gives, made once for these queries."""
        if key not in self._made:
            started = time.perf_counter()
            self._made[key] = make()
            self._seconds[key] = time.perf_counter() - started
        made: Made = self._made[key]
        return made

    def once_for_training(self, key: Any, make: Callable[[], Made]) -> Made:
        """What `make` gives, made once whatever the queries."""
        if key not in self._of_training:
            self._of_training[key] = make()
        made: Made = self._of_training[key]
        return made

    def seconds(self, key: Any) -> float:
        """How long it took to make something for these queries."""
        return self._seconds.get(key, 0.0)

    @property
    def train_inputs(self) -> "ModelInputs":
        """The training images as the model takes them; all models of a task take them alike."""
        return self.once_for_training("inputs", lambda: self._inputs(self.train, None))

    @property
    def query_inputs(self) -> "ModelInputs":
        return self.once("inputs", lambda: self._inputs(self.queries, self.queries_folder))

    def _inputs(self, images: Images, apart: Path | None) -> "ModelInputs":
        """Images as the model takes them; what its encoders make is kept with the run, the features, or apart."""
        from dtrak.features.inputs import model_inputs

        usual = self.settings.latents or self.folder / "latents"
        return model_inputs(self.model, images, usual if apart is None else apart / "latents")

    @property
    def folder_of_queries(self) -> Path:
        return self.queries_folder or self.folder


class Source:
    """What a method scores from. Each kind says what it needs and costs, and makes what formulas see."""

    needs: str = "nothing"  # in words, for the list of methods
    cost: str = "nothing"
    uses_retrained = False  # whether it learns from models that were retrained

    def check(self, task: Task) -> None:
        """Say what is lacking, before anything takes its time."""

    def inputs(self, task: Task) -> Iterator[Any]:
        """What the formula sees: one input for each model and objective, whose scores are averaged."""
        raise NotImplementedError

    def feature_cost(self, task: Task) -> Cost:
        """What the features behind the inputs cost."""
        return Cost()

    def seconds(self, task: Task) -> float:
        """How long the inputs have taken, in this process or in an earlier one; makes them if they are not there."""
        return 0.0

    def retrained_models(self, task: Task) -> int:
        """How many retrained models are behind the inputs."""
        return 0
