"""Receive gradients during a backward pass, one parameter at a time, so that they are never all in memory at once.

There are two ways. Autograd adds up the gradients of a batch: if the batch holds the copies of one image, this sum is
what we need. If it holds several images, hooks on the layers read the inputs and the gradients of the outputs before
they are added, and `layers.py` computes the gradient of each image from them. `tables.py` does the same for parameters
that belong to no layer.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dtrak.gradients.layers import WITHOUT_INPUT, gradient_of, of_blocks, owners
from dtrak.gradients.norms import of_each_copy
from dtrak.gradients.tables import Received, followed
from dtrak.models import DiffusionModel
from dtrak.models.conditions import Condition, moved, repeated
from dtrak.noise import gaussian

FOLDED = 1024  # the test of the hooks compares this many numbers of each gradient
TOLERANCE = 1e-2  # float32 rounding errors are far smaller than this, and errors of a missed gradient far larger
Receiver = Callable[[str, Tensor], None]  # called with a parameter's name and its gradient [images, n]
# A shortcut is called in the forward pass with a parameter's name, its layer and the layer's input. It returns a
# function that the backward pass calls with the gradient of the layer's output, or None if the parameter's gradient
# itself is needed.
Shortcut = Callable[[str, nn.Module, Tensor], Callable[[Tensor], None] | None]


@contextmanager
def gradient_of_the_batch(network: nn.Module, names: set[str], receive: Receiver) -> Iterator[None]:
    """Let a backward pass in this block call `receive(name, [1, n])` once for each named parameter that it reaches."""

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
        ] + [
            layer.register_forward_pre_hook(_require_input_gradient)
            for layer in owners(network, names).values()
            if isinstance(layer, nn.GroupNorm)
        ]
        with _removed_after(handles):
            yield


def _require_input_gradient(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Make the input of a group norm require a gradient.

    On a CPU, torch's group norm crashes in its backward pass if a channels-last input requires none.
    """
    return inputs if inputs[0].requires_grad else (inputs[0].detach().requires_grad_(), *inputs[1:])


@contextmanager
def gradient_of_each_image(
    network: nn.Module,
    names: set[str],
    images: int,
    receive: Receiver,
    shortcut: Shortcut = lambda name, layer, a: None,
) -> Iterator[None]:
    """Let a backward pass in this block call `receive(name, [images, n])` for each named parameter.

    The batch holds the copies of `images` images; the copies of one image are side by side. If a layer is called
    several times, `receive` is called each time, and the gradient is the sum. If `shortcut` returns a function for a
    parameter, this function is called instead of `receive`.
    """

    def collector(name: str, layer: nn.Module, a: Tensor) -> Callable[[Tensor], None]:
        if (short := shortcut(name, layer, a)) is not None:
            return short
        gradient = gradient_of(layer, name.rpartition(".")[2])
        needed = a.new_empty(0) if gradient in WITHOUT_INPUT else a  # an input that is not used is not kept in memory
        return lambda g: receive(name, gradient(layer, needed, g, images))

    def hook(path: str, layer: nn.Module) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        chosen = [
            name
            for key, _ in layer.named_parameters(recurse=False)
            if (name := f"{path}.{key}" if path else key) in names
        ]

        def after_forward(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            a = inputs[0].detach()
            a = a.float() if a.is_floating_point() else a
            with torch.autocast(a.device.type, enabled=False):  # projections are computed in float32
                collectors = [collector(name, layer, a) for name in chosen]
            # Nothing before the first chosen layer needs a gradient, so the backward pass ends at that layer's output.
            if not output.requires_grad:
                output.requires_grad_()

            def on_gradient(g: Tensor) -> None:
                g = g.float()
                for collect in collectors:
                    collect(g)

            output.register_hook(on_gradient)

        return after_forward

    def receiver(name: str) -> Received:
        return lambda rows: receive(name, rows.view(images, -1, rows.shape[1]).sum(1))

    tables = of_blocks(network, names)
    layers = owners(network, names - tables)
    norms = {
        layer: {key: receiver(name) for key in ("weight", "bias") if (name := f"{path}.{key}") in names}
        for path, layer in layers.items()
        if isinstance(layer, nn.GroupNorm)
    }
    with _evaluating(network, requiring=set()):
        handles = [
            layer.register_forward_hook(hook(path, layer)) for path, layer in layers.items() if layer not in norms
        ]
        with _removed_after(handles), followed(network, {name: receiver(name) for name in tables}), of_each_copy(norms):
            yield


# The results of `can_share_a_pass` for each network: it is called for the training images and then for the queries.
_TRIED: WeakKeyDictionary[nn.Module, dict[frozenset[str], bool]] = WeakKeyDictionary()


def can_share_a_pass(model: DiffusionModel, names: set[str], condition: Condition | None = None) -> bool:
    """Return whether hooks on the layers give the right gradient of each image. Each network is tested once."""
    tried = _TRIED.setdefault(model.network, {})
    chosen = frozenset(names)
    if chosen not in tried:
        tried[chosen] = _try_hooks(model, names, condition)
    return tried[chosen]


def _try_hooks(model: DiffusionModel, names: set[str], condition: Condition | None) -> bool:
    """Return whether the gradients from hooks equal ordinary gradients, for two copies of each of two images.

    Hooks fail if the network uses a parameter outside of its layer's call, or if a layer has several inputs or outputs,
    or an input without a batch axis. `condition` holds the condition of one image; each of its tensors is [1, …].
    """
    noisy = gaussian((4, *model.shape), 0).to(model.device)
    timesteps = torch.arange(4, device=model.device) * (model.timesteps // 4)
    of_four = moved(repeated(condition or {}, 4), model.device)
    one = {name: value[:2] for name, value in of_four.items()}
    expected = [
        _collected(model, noisy[part], timesteps[part], one, names, images=1) for part in (slice(2), slice(2, 4))
    ]
    try:
        found = _collected(model, noisy, timesteps, of_four, names, images=2)
    except Exception:  # layers with several inputs or outputs raise errors of many kinds
        return False
    # Some gradients are zero except for rounding errors, such as those of a bias before a softmax.
    rounding = 1e-5 * torch.stack([gradient.norm() for one in expected for gradient in one.values()]).norm()
    return all(one.keys() == found.keys() for one in expected) and all(
        (found[name][image] - one[name][0]).norm() <= TOLERANCE * one[name].norm() + rounding
        for image, one in enumerate(expected)
        for name in one
    )


def _collected(
    model: DiffusionModel, noisy: Tensor, timesteps: Tensor, condition: Condition, names: set[str], images: int
) -> dict[str, Tensor]:
    """Return the gradients of the summed square of the output: from autograd for one image, from hooks for several.

    Each gradient is folded to [images, FOLDED] numbers, because those of a large network would fill the memory.
    """
    gradients: dict[str, Tensor] = {}

    def receive(name: str, gradient: Tensor) -> None:
        whole = F.pad(gradient, (0, -gradient.shape[1] % FOLDED))
        gradients[name] = gradients.get(name, 0) + whole.view(images, -1, FOLDED).sum(1)

    network = model.network
    receiving = (
        gradient_of_the_batch(network, names, receive)
        if images == 1
        else gradient_of_each_image(network, names, images, receive)
    )
    with receiving:
        model.predict_target(noisy, timesteps, condition).square().sum().backward()
    return gradients


@contextmanager
def _removed_after(handles: list[RemovableHandle]) -> Iterator[None]:
    """Remove the hooks when the block ends."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _evaluating(network: nn.Module, requiring: set[str]) -> Iterator[None]:
    """Put the network in evaluation mode, and let only the parameters in `requiring` require gradients.

    When the block ends, all is set back.
    """
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
