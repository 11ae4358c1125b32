"""Read the losses of the queries under models retrained on halves of the training images, from a benchmark folder."""

from collections.abc import Iterator
from dataclasses import dataclass

from dtrak.errors import UsageError
from dtrak.inputs.arrays import RetrainedLosses
from dtrak.inputs.benchmark import Benchmark
from dtrak.inputs.task import Source, Task

FEWEST_MODELS = 4  # a comparison needs at least this many


@dataclass(frozen=True)
class Outcomes(Source):
    """The losses of the queries under retrained models, and which images each model was trained on."""

    needs: str = "losses under models retrained on halves"
    cost: str = "S trainings"
    uses_retrained = True

    def check(self, task: Task) -> None:
        check_enough(self._losses(task))

    def inputs(self, task: Task) -> Iterator[RetrainedLosses]:
        yield self._losses(task)

    def retrained_models(self, task: Task) -> int:
        return len(self._losses(task).masks)

    def _losses(self, task: Task) -> RetrainedLosses:
        return task.once("outcomes", lambda: _read(task))


def check_enough(outcomes: RetrainedLosses) -> None:
    """Refuse to compare too few models."""
    found = len(outcomes.masks)
    if found < FEWEST_MODELS:
        raise UsageError(f"{found} retrained models are too few to compare: there must be at least {FEWEST_MODELS}")


def _read(task: Task) -> RetrainedLosses:
    first, benchmark = slice(task.settings.retrained_count), benchmark_of(task)
    return RetrainedLosses(benchmark.masks[first], benchmark.losses_of(task.queries, task.settings.output)[first])


def benchmark_of(task: Task) -> Benchmark:
    """Return the benchmark folder that the user gave; refuse one of other training images."""

    def open_it() -> Benchmark:
        if task.settings.retrained is None:
            raise UsageError("there are no retrained models: give a benchmark folder as --retrained")
        benchmark = Benchmark.open(task.settings.retrained)
        benchmark.check_train(task.train)
        return benchmark

    return task.once_for_training("benchmark", open_it)
