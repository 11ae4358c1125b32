"""Random numbers that depend only on the name of their stream, not on the batch, order, worker or device.

A stream is named by a tuple such as (seed, timestep, draw); the same name gives the same numbers everywhere.
"""

import hashlib

import numpy as np
import torch
from torch import Tensor

Name = int | str


def stable_hash(text: str) -> int:
    """Return a 64-bit number for a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def stream(*names: Name) -> np.random.Generator:
    """Return the counter-based generator that belongs to these names."""
    key = np.random.SeedSequence([stable_hash(name) if isinstance(name, str) else name for name in names])
    return np.random.Generator(np.random.Philox(key))


def gaussian(shape: tuple[int, ...], *names: Name) -> Tensor:
    """Draw standard normal float32 numbers of this shape from the stream of these names."""
    return torch.from_numpy(stream(*names).standard_normal(shape, dtype=np.float32))
