"""The largest numbers that can be asked for, the same in recipes, in Python and on the command line.

What is beyond them is a slip of the finger: it would fill the memory or the disk, or never end.
"""

import reprlib
from collections.abc import Mapping

from dtrak.errors import UsageError

SEED = 2**63 - 1  # what 64 bits with a sign hold
PICTURES = 10**6  # drawn or asked about

MOST: Mapping[str, int] = {
    "count": PICTURES,
    "validation": PICTURES,
    "generated": PICTURES,
    "pictures": PICTURES,
    "remove": 10**9,  # it is compared with how many images there are
    "draws": 10**6,
    "noises": 10**6,
    "num_train_timesteps": 10**5,
    "projection_dim": 2**20,
    "batch_size": 10**6,
    "epochs": 10**6,
    "checkpoints": 1000,
    "subsets": 10**4,
    "seeds": 100,
    "checkpoint_count": 1000,
    "ensemble_size": 10**4,
    "size": 8192,  # pixels along a side
    "rank": 10**4,
    "channels": 2**16,  # of a network's block
    "blocks": 16,
    "layers_per_block": 64,
    "workers": 1024,
    "port": 2**16 - 1,
    "step": 10**5,
    "seed": SEED,
    "first_seed": SEED - PICTURES,  # the pictures after it have seeds, too
}


def check_number(name: str, value: object, least: int = 1) -> None:
    """Refuse what is no whole number from `least` to the most that may be asked for under this name."""
    said = f"{name.replace('_', '-')} {shortened(value)}"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise UsageError(f"{said}: it must be a whole number")
    number = int(value.__index__())
    if number < least:
        raise UsageError(f"{said}: it must {'be at least 1' if least else 'not be negative'}")
    if number > MOST[name]:
        raise UsageError(f"{said}: it must be at most {MOST[name]:,}")


def shortened(value: object) -> str:
    """What was given, shortened; Python itself refuses to write down numbers of thousands of digits."""
    try:
        text = reprlib.repr(value) if not isinstance(value, int) else str(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:40]}…"
