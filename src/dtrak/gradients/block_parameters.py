"""Parameters whose gradients of single copies no layer's hook can tell: those of group norms, and tables of blocks.

The group norm of B copies with C channels in G groups equals that of one copy with B·C channels in B·G groups, if scale
and bias are repeated B times. Autograd then computes the gradients of the repeated scale and bias, which are those of
the copies side by side, for the price of the usual backward pass.

A table belongs to a block instead of a layer:

    block(x, t) = … table[None] + time_embedding(t) …        transformers such as PixArt's and Sana's

While it is followed, it is replaced by a tensor that knows what is done with it. When it meets another tensor, whose
first axis is the batch, it is repeated for every copy, and the gradient of each repetition is that of one copy.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

Received = Callable[[Tensor], None]  # called with the gradients of all copies, [copies, n]


@contextmanager
def norms_of_each_copy(norms: Mapping[nn.GroupNorm, Mapping[str, Received]]) -> Iterator[None]:
    """Let the receivers of `weight` and `bias` of each norm get the gradients of all copies, [copies, channels]."""

    def joined(norm: nn.GroupNorm, receivers: Mapping[str, Received]) -> Callable[[Tensor], Tensor]:
        def repeated(key: str, copies: int) -> Tensor:
            own: Tensor = norm.get_parameter(key).detach().repeat(copies)
            if key in receivers:
                own.requires_grad_().register_hook(lambda g: receivers[key](g.view(copies, -1).float()))
            return own

        def forward(x: Tensor) -> Tensor:
            copies, groups = len(x), len(x) * norm.num_groups
            weight, bias = repeated("weight", copies), repeated("bias", copies)
            return F.group_norm(x.reshape(1, copies * x.shape[1], -1), groups, weight, bias, norm.eps).view(x.shape)

        return forward

    try:
        for norm, receivers in norms.items():
            norm.__dict__["forward"] = joined(norm, receivers)  # in the place of the method
        yield
    finally:
        for norm in norms:
            norm.__dict__.pop("forward", None)


@contextmanager
def tables_of_each_copy(network: nn.Module, receivers: Mapping[str, Received]) -> Iterator[None]:
    """Replace the named parameters by tables in this block; each receiver gets the gradients of all copies."""
    own = {name: network.get_parameter(name) for name in receivers}
    blocks = {name: network.get_submodule(name.rpartition(".")[0]) for name in receivers}
    try:
        for name, parameter in own.items():
            leaf: Any = parameter.detach().requires_grad_()
            blocks[name]._parameters[name.rpartition(".")[2]] = Table.of(leaf, leaf, receivers[name])
        yield
    finally:
        for name, parameter in own.items():
            blocks[name]._parameters[name.rpartition(".")[2]] = parameter


class Table(Tensor):
    """A parameter, or what was made of it without other tensors, as a view or in another type."""

    parameter: Tensor
    made: Tensor  # with the graph that leads back to the parameter
    receive: Received

    @classmethod
    def of(cls, parameter: Tensor, made: Tensor, receive: Received) -> Any:
        table = made.detach().as_subclass(cls)
        table.parameter, table.made, table.receive = parameter, made, receive
        return table

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        # Whole numbers select rows of a table; they say nothing about the batch.
        others = [one for one in given if not isinstance(one, Table) and one.is_floating_point()]
        largest = max(others, key=lambda one: one.dim(), default=None)

        def plain(one: Any) -> Any:
            if not isinstance(one, Table):
                return one
            return one.made if largest is None else one.repeated(len(largest), largest.dim())

        with torch._C.DisableTorchFunctionSubclass():
            args, kwargs = tree_map(plain, (args, kwargs or {}))
            with torch.enable_grad():
                result = function(*args, **kwargs)
        if others or not isinstance(result, Tensor):
            return result
        first = next(one for one in given if isinstance(one, Table))
        return Table.of(first.parameter, result, first.receive)

    def repeated(self, copies: int, axes: int) -> Tensor:
        """Return a tensor of which every copy has its own part, [copies, …], and let its gradient be received."""
        made = self.made[(None,) * (axes - self.made.dim())]
        repeated = made if len(made) == copies else made.expand(copies, *made.shape[1:])
        watched = repeated.detach().requires_grad_()

        def on_gradient(g: Tensor) -> None:
            rows = []
            for copy in range(copies):
                own = torch.zeros_like(g)
                own[copy] = g[copy]
                with torch.enable_grad():
                    rows.append(torch.autograd.grad(repeated, self.parameter, own, retain_graph=True)[0].flatten())
            self.receive(torch.stack(rows).float())

        watched.register_hook(on_gradient)
        return watched
