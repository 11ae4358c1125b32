"""Two ways to catch gradients during a backward pass, one parameter at a time, so that they never exist all at once.

Autograd adds the gradients of a batch together. When the batch is the copies of one image, that sum is what we want.
When it holds several images, hooks on the layers see inputs and output gradients before they are added, and `layers.py`
gives each image its own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dtrak.gradients.layers import WITHOUT_INPUT, gradient_of, owners, supported
from dtrak.models import DiffusionModel
from dtrak.models.conditions import Condition, moved, repeated
from dtrak.noise import gaussian

FOLDED = 1024  # numbers of each gradient that the trial of hooks compares
TOLERANCE = 1e-2  # float32 rounding is far below this, a gradient that was missed far above
Receiver = Callable[[str, Tensor], None]  # called with a parameter's name and its gradient [images, n]
# Called in the forward pass with a parameter's name, its layer and the layer's input. It returns what the backward pass
# calls with the gradient of the layer's output, or None if the gradient of the parameter itself is needed.
Shortcut = Callable[[str, nn.Module, Tensor], Callable[[Tensor], None] | None]


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
        ] + [
            layer.register_forward_pre_hook(_require_input_gradient)
            for layer in owners(network, names).values()
            if isinstance(layer, nn.GroupNorm)
        ]
        with _removed_after(handles):
            yield


def _require_input_gradient(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """torch's group norm on a CPU crashes in its backward pass if a channels-last input requires no gradient."""
    return inputs if inputs[0].requires_grad else (inputs[0].detach().requires_grad_(), *inputs[1:])


@contextmanager
def gradient_of_each_image(
    network: nn.Module,
    names: set[str],
    images: int,
    receive: Receiver,
    shortcut: Shortcut = lambda name, layer, a: None,
) -> Iterator[None]:
    """Within this block a backward pass calls `receive(name, [images, n])` for each named parameter.

    The batch holds the copies of `images` images, those of one image side by side. A layer that is called several
    times calls `receive` each time: the gradient is the sum. If there is a `shortcut` for a parameter, it is called
    instead.
    """

    def collector(name: str, layer: nn.Module, a: Tensor) -> Callable[[Tensor], None]:
        if (short := shortcut(name, layer, a)) is not None:
            return short
        gradient = gradient_of(layer, name.rpartition(".")[2])
        needed = a.new_empty(0) if gradient in WITHOUT_INPUT else a  # else the input would stay in memory
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
            # Nothing before the deepest chosen layer needs a gradient, so the backward pass ends at its output.
            if not output.requires_grad:
                output.requires_grad_()

            def on_gradient(g: Tensor) -> None:
                g = g.float()
                for collect in collectors:
                    collect(g)

            output.register_hook(on_gradient)

        return after_forward

    with _evaluating(network, requiring=set()):
        handles = [layer.register_forward_hook(hook(path, layer)) for path, layer in owners(network, names).items()]
        with _removed_after(handles):
            yield


# What was found for a network; training images and queries ask one after the other.
_TRIED: WeakKeyDictionary[nn.Module, dict[frozenset[str], bool]] = WeakKeyDictionary()


def can_share_a_pass(model: DiffusionModel, names: set[str], condition: Condition | None = None) -> bool:
    """Whether hooks on the layers give each image its own gradient; each network is tried once."""
    tried = _TRIED.setdefault(model.network, {})
    chosen = frozenset(names)
    if chosen not in tried:
        tried[chosen] = _try_hooks(model, names, condition)
    return tried[chosen]


def _try_hooks(model: DiffusionModel, names: set[str], condition: Condition | None) -> bool:
    """Compare what hooks give with ordinary gradients, on two copies of each of two images.

    Hooks fail where a parameter belongs to a block of layers, where a network uses a parameter outside of its layer's
    call, or where a layer has several inputs or outputs, or an input without a batch axis. `condition` is that of one
    image, each [1, …].
    """
    if not supported(model.network, names):
        return False
    noisy = gaussian((4, *model.shape), 0).to(model.device)
    timesteps = torch.arange(4, device=model.device) * (model.timesteps // 4)
    of_four = moved(repeated(condition or {}, 4), model.device)
    one = {name: value[:2] for name, value in of_four.items()}
    expected = [
        _collected(model, noisy[part], timesteps[part], one, names, images=1) for part in (slice(2), slice(2, 4))
    ]
    try:
        found = _collected(model, noisy, timesteps, of_four, names, images=2)
    except Exception:  # layers with several inputs or outputs fail in ways of their own
        return False
    # Some gradients are zero but for rounding, as those of a bias before a softmax.
    rounding = 1e-5 * torch.stack([gradient.norm() for one in expected for gradient in one.values()]).norm()
    return all(one.keys() == found.keys() for one in expected) and all(
        (found[name][image] - one[name][0]).norm() <= TOLERANCE * one[name].norm() + rounding
        for image, one in enumerate(expected)
        for name in one
    )


def _collected(
    model: DiffusionModel, noisy: Tensor, timesteps: Tensor, condition: Condition, names: set[str], images: int
) -> dict[str, Tensor]:
    """The gradients of the summed square of the output, of one image in the ordinary way.

    Each is folded to [images, FOLDED] numbers, as those of a large network would fill the memory.
    """
    gradients: dict[str, Tensor] = {}

    def receive(name: str, gradient: Tensor) -> None:
        whole = F.pad(gradient, (0, -gradient.shape[1] % FOLDED))
        gradients[name] = gradients.get(name, 0) + whole.view(images, -1, FOLDED).sum(1)

    network = model.network
    way = (
        gradient_of_the_batch(network, names, receive)
        if images == 1
        else gradient_of_each_image(network, names, images, receive)
    )
    with way:
        model.predict_target(noisy, timesteps, condition).square().sum().backward()
    return gradients


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
