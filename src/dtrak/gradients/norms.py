"""Group norms that give every copy of a batch its own gradient of scale and bias, for the price of the usual backward
pass.

The group norm of B copies with C channels in G groups equals the group norm of one copy with B·C channels in B·G
groups, if scale and bias are repeated B times. Autograd then computes the gradients of the repeated scale and bias, and
these are the gradients of the copies, side by side.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch.nn.functional as F
from torch import Tensor, nn

from dtrak.gradients.tables import Received


@contextmanager
def of_each_copy(norms: Mapping[nn.GroupNorm, Mapping[str, Received]]) -> Iterator[None]:
    """Let the receivers of `weight` and `bias` of each norm get the gradients of all copies, [copies, channels]."""
    try:
        for norm, receivers in norms.items():
            norm.forward = _forward(norm, receivers)  # type: ignore[method-assign, assignment]
        yield
    finally:
        for norm in norms:
            norm.__dict__.pop("forward", None)


def _forward(norm: nn.GroupNorm, receivers: Mapping[str, Received]) -> Callable[[Tensor], Tensor]:
    def repeated(key: str, copies: int) -> Tensor:
        own: Tensor = norm.get_parameter(key).detach().repeat(copies)
        if key in receivers:
            own.requires_grad_().register_hook(lambda g: receivers[key](g.view(copies, -1).float()))
        return own

    def forward(x: Tensor) -> Tensor:
        copies = len(x)
        weight, bias = repeated("weight", copies), repeated("bias", copies)
        joined = x.reshape(1, copies * x.shape[1], -1)
        return F.group_norm(joined, copies * norm.num_groups, weight, bias, norm.eps).view(x.shape)

    return forward
