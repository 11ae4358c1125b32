"""Receive gradients during a backward pass, one parameter at a time, so that they are never all in memory at once.

There are two ways. Autograd adds up the gradients of a batch: if the batch holds the copies of one image, this sum is
what we need. If it holds several images, hooks on the layers read the inputs and the gradients of the outputs before
they are added, and `layers.py` computes the gradient of each image from them. `block_parameters.py` does the same for
group norms and for parameters that belong to no layer.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dtrak.gradients.block_parameters import Received, norms_of_each_copy, tables_of_each_copy
from dtrak.gradients.layers import WITHOUT_INPUT, gradient_of, of_blocks, owners
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

    def require_gradient(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        # On a CPU, torch's group norm crashes in its backward pass if a channels-last input requires no gradient.
        return inputs if inputs[0].requires_grad else (inputs[0].detach().requires_grad_(), *inputs[1:])

    with _evaluating(network, names) as handles:
        for name, parameter in network.named_parameters():
            if name in names:
                handles.append(parameter.register_post_accumulate_grad_hook(hook(name)))
        for layer in owners(network, names).values():
            if isinstance(layer, nn.GroupNorm):
                handles.append(layer.register_forward_pre_hook(require_gradient))
        yield


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

    def hook(chosen: list[str]) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def after_forward(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
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

    def of_copies(name: str) -> Received:
        return lambda rows: receive(name, rows.view(images, -1, rows.shape[1]).sum(1))

    tables = of_blocks(network, names)
    norms: dict[nn.GroupNorm, dict[str, Received]] = {}
    with _evaluating(network, requiring=set()) as handles:
        for path, layer in owners(network, names - tables).items():
            own = {key: f"{path}.{key}" if path else key for key, _ in layer.named_parameters(recurse=False)}
            chosen = {key: name for key, name in own.items() if name in names}
            if isinstance(layer, nn.GroupNorm):
                norms[layer] = {key: of_copies(name) for key, name in chosen.items()}
            else:
                handles.append(layer.register_forward_hook(hook(list(chosen.values()))))
        with tables_of_each_copy(network, {name: of_copies(name) for name in tables}), norms_of_each_copy(norms):
            yield


# The results of `can_share_a_pass` for each network: it is called for the training images and then for the queries.
_TRIED: WeakKeyDictionary[nn.Module, dict[frozenset[str], bool]] = WeakKeyDictionary()


def can_share_a_pass(model: DiffusionModel, names: set[str], condition: Condition | None = None) -> bool:
    """Return whether hooks on the layers give the right gradient of each image: each network is tried once.

    Gradients from hooks are compared with ordinary ones, for two copies of each of two images. Hooks fail if the
    network uses a parameter outside of its layer's call, or if a layer has several inputs or outputs, or an input
    without a batch axis. `condition` holds the condition of one image; each of its tensors is [1, …].
    """
    tried, chosen = _TRIED.setdefault(model.network, {}), frozenset(names)
    if chosen in tried:
        return tried[chosen]
    noisy = gaussian((4, *model.shape), 0).to(model.device)
    timesteps = torch.arange(4, device=model.device) * (model.process.timesteps // 4)
    of_four = moved(repeated(condition or {}, 4), model.device)
    of_two = {name: value[:2] for name, value in of_four.items()}
    pairs = (slice(2), slice(2, 4))
    expected = [_collected(model, noisy[part], timesteps[part], of_two, names, images=1) for part in pairs]
    try:
        found = _collected(model, noisy, timesteps, of_four, names, images=2)
    except Exception:  # layers with several inputs or outputs raise errors of many kinds
        tried[chosen] = False
        return False
    # Some gradients are zero except for rounding errors, such as those of a bias before a softmax.
    rounding = 1e-5 * torch.stack([gradient.norm() for one in expected for gradient in one.values()]).norm()
    tried[chosen] = all(one.keys() == found.keys() for one in expected) and all(
        bool((found[name][image] - one[name][0]).norm() <= TOLERANCE * one[name].norm() + rounding)
        for image, one in enumerate(expected)
        for name in one
    )
    return tried[chosen]


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

    if images == 1:
        receiving = gradient_of_the_batch(model.network, names, receive)
    else:
        receiving = gradient_of_each_image(model.network, names, images, receive)
    with receiving:
        model.predict_target(noisy, timesteps, condition).square().sum().backward()
    return gradients


@contextmanager
def _evaluating(network: nn.Module, requiring: set[str]) -> Iterator[list[RemovableHandle]]:
    """Put the network in evaluation mode, and let only the parameters in `requiring` require gradients.

    When the block ends, all is set back, and the hooks whose handles were added to the list are removed.
    """
    training, handles = network.training, list[RemovableHandle]()
    before = {name: value.requires_grad for name, value in network.named_parameters()}
    network.eval()
    for name, value in network.named_parameters():
        value.requires_grad_(name in requiring)
    try:
        yield handles
    finally:
        for handle in handles:
            handle.remove()
        network.train(training)
        for name, value in network.named_parameters():
            value.requires_grad_(before[name])
