"""Run the jobs one after the other in this process."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from dtrak.contracts import Context, Job, Result


class ThisProcess:
    """An engine that runs jobs in this process."""

    is_here = True

    def run(
        self,
        work: Callable[[Context, Job], Result],
        context: Context,
        jobs: Sequence[Job],
        threads: int = 1,
        gpu: bool = False,
        card: int | None = None,
    ) -> Iterator[tuple[Job, Result]]:
        for job in jobs:
            with torch_threads(threads):
                result = work(context, job)
            yield job, result


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Let torch use exactly so many threads in the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
