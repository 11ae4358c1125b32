"""A task has a model, its training images, the queries, and the settings. Sources make the inputs of formulas from it.

What several methods need is made once. What depends only on the training images is shared by tasks that differ in their
queries.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dtrak.engines import Engine
from dtrak.features.store import Cost
from dtrak.images.images import Images
from dtrak.inputs.needs import GradientKind, NeededGradients
from dtrak.inputs.settings import Settings
from dtrak.kernels.damping import Damping

if TYPE_CHECKING:
    from dtrak.features.inputs import ModelInputs
    from dtrak.models import DiffusionModel

# Models are imported where they are needed: the import of diffusers takes seconds, and wrong names are refused before.

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class Task:
    """One task of attribution: score the training images for each of the queries."""

    model: "DiffusionModel"
    train: Images
    queries: Images
    settings: Settings
    folder: Path  # where features are kept
    needed: Mapping[GradientKind, NeededGradients]  # what all methods of the task need
    engine: Engine | None = None  # runs the computation of gradients; None means this process
    share: tuple[int, int] | None = None  # the share (i, n) of the training images' features to compute; None means all
    dampings: Sequence[Damping] = ()  # the only ones that scores are asked for; empty if any may be asked for
    queries_folder: Path | None = None  # where features of the queries are kept; None means `folder`
    _made: dict[Any, Any] = field(default_factory=dict)
    _of_training: dict[Any, Any] = field(default_factory=dict)  # what does not depend on the queries
    _seconds: dict[Any, float] = field(default_factory=dict)  # how long it took to make what is in `_made`

    def with_queries(self, queries: Images, folder: Path | None = None) -> "Task":
        """Return the same task with other queries. Both tasks share what is made of the training images.

        If a `folder` is given, all that is made of the queries is kept only there, so that it can be removed.
        """
        self.model.check_fits(queries.shape, queries.source)
        return replace(self, queries=queries, queries_folder=folder, _made={}, _seconds={})

    def needing(self, needed: Mapping[GradientKind, NeededGradients]) -> "Task":
        """Return the same task for methods that need these gradients."""
        return replace(self, needed=needed)

    def asking(self, dampings: Sequence[Damping]) -> "Task":
        """Return the same task, of which scores are asked for these dampings only. Kernels for one are quicker."""
        return replace(self, dampings=tuple(dampings))

    def once(self, key: Any, make: Callable[[], Made]) -> Made:
        """Return the result of `make`, which is called once for these queries."""
        if key not in self._made:
            started = time.perf_counter()
            self._made[key] = make()
            self._seconds[key] = time.perf_counter() - started
        made: Made = self._made[key]
        return made

    def once_for_training(self, key: Any, make: Callable[[], Made]) -> Made:
        """Return the result of `make`, which is called once for all queries."""
        if key not in self._of_training:
            self._of_training[key] = make()
        made: Made = self._of_training[key]
        return made

    def seconds(self, key: Any) -> float:
        """Return how long `once` took to make the result of this key; 0 if it was not made."""
        return self._seconds.get(key, 0.0)

    @property
    def train_inputs(self) -> "ModelInputs":
        """Return the training images as the input of the model; all models of a task take the same input."""
        return self.once_for_training("inputs", lambda: self._inputs(self.train, None))

    @property
    def query_inputs(self) -> "ModelInputs":
        """Return the queries as the input of the model."""
        return self.once("inputs", lambda: self._inputs(self.queries, self.queries_folder))

    def _inputs(self, images: Images, apart: Path | None) -> "ModelInputs":
        """Return images as the input of the model. Latents are kept in the usual folder, or in `apart` if given."""
        from dtrak.features.inputs import model_inputs

        usual = self.settings.latents or self.folder / "latents"
        return model_inputs(self.model, images, usual if apart is None else apart / "latents")

    @property
    def folder_of_queries(self) -> Path:
        """Return the folder that keeps what is made of the queries."""
        return self.queries_folder or self.folder


class Source:
    """A source makes the inputs of a method's formula. It says what it needs and what it costs."""

    needs: str = "nothing"  # what must be there, in words, for the list of methods
    cost: str = "nothing"

    def check(self, task: Task) -> None:
        """Raise an error if something is missing, before any long work begins."""

    def inputs(self, task: Task) -> Iterator[Any]:
        """Yield the inputs of the formula, such as one for each model and objective. Their scores are averaged."""
        raise NotImplementedError

    def feature_cost(self, task: Task) -> Cost:
        """Return the cost of the features that the inputs are made from."""
        return Cost()

    def seconds(self, task: Task) -> float:
        """Return how long it took to make the inputs, now or in an earlier process. Make them if they are missing."""
        return 0.0

    def retrained_models(self, task: Task) -> int:
        """Return how many retrained models the inputs are made from."""
        return 0
