"""An adapter calls a network: it takes the network, x_t, the time and the condition, and returns the prediction.

    adapter(network, x_t [B, C, H, W], time [B], condition) → [B, C, H, W], or [B, 2C, H, W] with a learned variance

Networks differ in the names and order of their arguments, in the unit of time, and in how they arrange x_t. The usual
adapter calls `network(x_t, time, **condition)`. Write another one for a network with other arguments.
"""

from collections.abc import Callable
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from dtrak.errors import UsageError
from dtrak.models.conditions import Condition

Adapter = Callable[[nn.Module, Tensor, Tensor, Condition], Any]


def plain(network: nn.Module, noisy: Tensor, time: Tensor, condition: Condition) -> Any:
    """Call a network that takes x_t and the time, and then its condition by name."""
    return network(noisy, time, **condition)


def called(adapter: Adapter, network: nn.Module, noisy: Tensor, time: Tensor, condition: Condition) -> Any:
    """Call the adapter; if the network does not take what it is given, say what that was."""
    try:
        return adapter(network, noisy, time, condition)
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        if adapter is not plain or isinstance(error, torch.OutOfMemoryError) or noisy.is_meta:
            raise
        told = "".join(f", {name} {list(value.shape)}" for name, value in condition.items())
        raise UsageError(
            f"the network {type(network).__name__} cannot be called with x_t {list(noisy.shape)}, time "
            f"{list(time.shape)}{told}: {str(error).splitlines()[0]} (an adapter can call it in another way)"
        ) from error


def prediction_of(output: Any, noisy: Tensor) -> Tensor:
    """Return the prediction in a network's output: a tensor, an attribute `sample`, or the first part of a tuple.

    Of twice as many channels as x_t has, the second half are a learned variance, which no objective uses.
    """
    found = getattr(output, "sample", output[0] if isinstance(output, tuple) else output)
    if not isinstance(found, Tensor):
        raise UsageError(f"the network returns {type(output).__name__}: give an adapter that returns a tensor")
    if found.dim() == noisy.dim() and found.shape[1] == 2 * noisy.shape[1]:
        found = found[:, : noisy.shape[1]]
    if found.shape != noisy.shape:
        raise UsageError(
            f"the network returns {list(found.shape)} for x_t of {list(noisy.shape)}: give an adapter that returns "
            "the prediction in the shape of x_t"
        )
    return found


def described(adapter: Adapter) -> str:
    """Return a text that changes with an adapter's code and settings, for fingerprints."""
    if isinstance(adapter, partial):
        return f"{described(adapter.func)} {adapter.args} {sorted(adapter.keywords.items())}"
    code = getattr(adapter, "__code__", None)
    name = getattr(adapter, "__qualname__", type(adapter).__qualname__)
    return f"{name} {_content(code) if code is not None else ''}"


def _content(code: CodeType) -> str:
    """Return what a function does, without the place of its source."""
    constants = [_content(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return repr((code.co_code, code.co_names, constants))
