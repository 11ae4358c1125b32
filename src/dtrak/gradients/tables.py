"""Parameters that belong to a block instead of a layer: tables that a network adds to what it knows of each image.

    block(x, t) = … table[None] + time_embedding(t) …        transformers such as PixArt's and Sana's

There is no layer whose output a hook could watch. So while the hooks are set, the parameter is replaced by a `Table`,
a tensor that follows what is done with it. When it meets another tensor, whose first axis is the batch, it is repeated
for every copy in the batch, and the gradient of each repetition is that of one copy.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

Received = Callable[[Tensor], None]  # called with the gradients of all copies, [copies, n]


class Table(Tensor):
    """A parameter, or what was made of it without other tensors, as a view or in another type."""

    parameter: Tensor
    made: Tensor  # with the graph that leads back to the parameter
    receive: Received

    @classmethod
    def of(cls, parameter: Tensor, made: Tensor, receive: Received) -> "Table":
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
            return one.made if largest is None else _of_each_copy(one, len(largest), largest.dim())

        with torch._C.DisableTorchFunctionSubclass():
            args, kwargs = tree_map(plain, (args, kwargs or {}))
            with torch.enable_grad():
                result = function(*args, **kwargs)
        if others or not isinstance(result, Tensor):
            return result
        first = next(one for one in given if isinstance(one, Table))
        return Table.of(first.parameter, result, first.receive)


def _of_each_copy(table: Table, copies: int, axes: int) -> Tensor:
    """Return a tensor of which every copy has its own part, [copies, …], and let its gradient be received."""
    made = table.made[(None,) * (axes - table.made.dim())]
    repeated = made if len(made) == copies else made.expand(copies, *made.shape[1:])
    watched = repeated.detach().requires_grad_()

    def on_gradient(g: Tensor) -> None:
        rows = []
        for copy in range(copies):
            own = torch.zeros_like(g)
            own[copy] = g[copy]
            with torch.enable_grad():
                rows.append(torch.autograd.grad(repeated, table.parameter, own, retain_graph=True)[0].flatten())
        table.receive(torch.stack(rows).float())

    watched.register_hook(on_gradient)
    return watched


@contextmanager
def followed(network: nn.Module, receivers: Mapping[str, Received]) -> Iterator[None]:
    """Replace the named parameters by tables in this block; each receiver gets the gradients of all copies."""
    places = {name: (network.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in receivers}
    own = {name: block._parameters[key] for name, (block, key) in places.items()}
    try:
        for name, (block, key) in places.items():
            parameter = own[name]
            assert parameter is not None
            leaf = parameter.detach().requires_grad_()
            block._parameters[key] = Table.of(leaf, leaf, receivers[name])  # type: ignore[assignment]
        yield
    finally:
        for name, (block, key) in places.items():
            block._parameters[key] = own[name]
