"""Read the losses of the queries under models retrained on halves of the training images, from a benchmark folder."""

from collections.abc import Iterator
from dataclasses import dataclass

from dtrak.contracts import RetrainedLosses
from dtrak.errors import UsageError
from dtrak.inputs.benchmark import Benchmark
from dtrak.inputs.task import Source, Task


@dataclass(frozen=True)
class OutcomeSource(Source):
    """The losses of the queries under retrained models, and which images each model was trained on."""

    needs: str = "losses under models retrained on halves"
    cost: str = "S trainings"

    def check(self, task: Task) -> None:
        from dtrak.methods.retrained_models import check_enough  # scikit-learn takes a second

        check_enough(self._losses(task))

    def inputs(self, task: Task) -> Iterator[RetrainedLosses]:
        yield self._losses(task)

    def retrained_models(self, task: Task) -> int:
        return len(self._losses(task).masks)

    def _losses(self, task: Task) -> RetrainedLosses:
        return task.once("outcomes", lambda: _read(task))


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
