"""Where the computing is done: which devices there are, and how many of a CPU's threads are worth having."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

# With less work than this, threads wait for each other longer than they save.
ACTIVATION_BYTES_PER_THREAD = 24 << 20


def devices() -> list[str]:
    """The devices that are there, the fastest first."""
    cuda = ["cuda", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return [*(cuda if torch.cuda.is_available() else []), *mps, "cpu"]


def useful_threads(pass_bytes: int, most: int) -> int:
    """How many of `most` threads are worth having for a pass with so many bytes of activations."""
    return max(1, min(most, pass_bytes // ACTIVATION_BYTES_PER_THREAD))


@contextmanager
def threads_for(pass_bytes: int) -> Iterator[None]:
    """No more threads than a pass with so many bytes of activations can use; as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(useful_threads(pass_bytes, before))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def reproducible() -> AbstractContextManager[None]:
    """On NVIDIA's GPUs: the same numbers every time, in float32 where it says float32."""
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    )
    return flags
