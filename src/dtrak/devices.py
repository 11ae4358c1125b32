"""Where the computing is done."""

import torch


def devices() -> list[str]:
    """The devices that are there, the fastest first."""
    cuda = ["cuda", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return [*(cuda if torch.cuda.is_available() else []), *mps, "cpu"]
