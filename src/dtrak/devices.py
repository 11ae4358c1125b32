"""Find the devices of this machine, their memory, and how many threads of a CPU make a pass faster."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch

# With less work than this, threads wait for each other longer than they save.
ACTIVATION_BYTES_PER_THREAD = 24 << 20
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def devices() -> list[str]:
    """List the devices of this machine, the fastest first."""
    cuda = ["cuda", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return [*(cuda if torch.cuda.is_available() else []), *mps, "cpu"]


def total_memory(device: torch.device) -> int:
    """Return the bytes of memory of a device; for a CPU those of the machine, or of its container's limit."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = CONTAINER_LIMIT.read_text().strip() if CONTAINER_LIMIT.exists() else "max"
    return machine if limit == "max" else min(machine, int(limit))


def useful_threads(pass_bytes: int, most: int) -> int:
    """Return how many of at most `most` threads make a pass with `pass_bytes` bytes of activations faster."""
    return max(1, min(most, pass_bytes // ACTIVATION_BYTES_PER_THREAD))


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Let torch use exactly so many threads in the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def threads_for(pass_bytes: int) -> AbstractContextManager[None]:
    """Let torch use no more threads in the block than a pass with `pass_bytes` bytes of activations can use."""
    return torch_threads(useful_threads(pass_bytes, torch.get_num_threads()))


def reproducible() -> AbstractContextManager[None]:
    """Make NVIDIA's GPUs compute the same numbers every time, and never replace float32 by the shorter TF32."""
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    )
    return flags
