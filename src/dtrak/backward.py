"""Two ways to catch gradients during a backward pass, one parameter at a time, so that they never exist all at once.

Autograd adds the gradients of a batch together. When the batch is the copies of one image, that sum is what we want.
When it holds several images, hooks on the layers see inputs and output gradients before they are added, and `layers.py`
gives each image its own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dtrak.layers import LAYERS, owners

Receiver = Callable[[str, Tensor], None]  # called with a parameter's name and its gradient [images, n]


@contextmanager
def gradient_of_the_batch(network: nn.Module, names: set[str], receive: Receiver) -> Iterator[None]:
    """Within this block a backward pass calls `receive(name, [1, n])` once for each named parameter it reaches."""

    def hook(name: str) -> Callable[[Tensor], None]:
        def on_gradient(parameter: Tensor) -> None:
            assert parameter.grad is not None
            gradient, parameter.grad = parameter.grad, None
            receive(name, gradient.reshape(1, -1))

        return on_gradient

    with _evaluating(network, names):
        handles = [
            parameter.register_post_accumulate_grad_hook(hook(name))
            for name, parameter in network.named_parameters()
            if name in names
        ]
        with _removed_after(handles):
            yield


@contextmanager
def gradient_of_each_image(network: nn.Module, names: set[str], images: int, receive: Receiver) -> Iterator[None]:
    """Within this block a backward pass calls `receive(name, [images, n])` for each named parameter.

    The batch holds the copies of `images` images, those of one image side by side. A layer that is called several
    times calls `receive` each time: the gradient is the sum.
    """

    def hook(path: str, layer: nn.Module) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def after_forward(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            a = inputs[0].detach()
            # Nothing before the deepest chosen layer needs a gradient, so the backward pass ends at its output.
            if not output.requires_grad:
                output.requires_grad_()

            def on_gradient(g: Tensor) -> None:
                for key, gradient in LAYERS[type(layer)](layer, a, g, images).items():
                    if f"{path}.{key}" in names:
                        receive(f"{path}.{key}", gradient.reshape(images, -1))

            output.register_hook(on_gradient)

        return after_forward

    with _evaluating(network, requiring=set()):
        handles = [layer.register_forward_hook(hook(path, layer)) for path, layer in owners(network, names).items()]
        with _removed_after(handles):
            yield


@contextmanager
def _removed_after(handles: list[RemovableHandle]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _evaluating(network: nn.Module, requiring: set[str]) -> Iterator[None]:
    """Evaluation mode, with only the parameters in `requiring` requiring gradients; all as it was afterwards."""
    training = network.training
    before = {name: value.requires_grad for name, value in network.named_parameters()}
    network.eval()
    for name, value in network.named_parameters():
        value.requires_grad_(name in requiring)
    try:
        yield
    finally:
        network.train(training)
        for name, value in network.named_parameters():
            value.requires_grad_(before[name])
