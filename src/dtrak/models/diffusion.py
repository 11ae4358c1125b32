"""A diffusion model: a network that removes noise, the process that adds it, and the shape of the noised images.

Most models work on pixels. Latent models also have an autoencoder, and conditional models a conditioner, which makes
what the network takes beside x_t and t. Any `nn.Module` can be wrapped: an adapter says how it is called.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from dtrak.checks import shortened
from dtrak.errors import UsageError, check_takes
from dtrak.fingerprints import Facts, hash_of, of_network, of_object
from dtrak.models.autoencoder import Autoencoder, as_autoencoder
from dtrak.models.conditions import Adapter, Columns, Condition, Conditioner, called, plain
from dtrak.models.noise_process import NoiseProcess
from dtrak.models.prompts import Prompts
from dtrak.models.schedulers import noise_process_of

LORA = "lora_"  # is in the names of all parameters of a LoRA
EVERY_PARAMETER = "all"  # the pattern that selects all parameters
# The layers from the middle of a U-Net to its end, which a backward pass reaches first.
LATE = r"^(mid_block|up_blocks|conv_norm_out|conv_out)\."


@dataclass(frozen=True, eq=False)
class DiffusionModel:
    """A network that predicts noise, with the process that adds noise.

    Any module that maps (images, timesteps) to a noise prediction can be wrapped:

    >>> import dtrak, torch
    >>> from diffusers import DDPMScheduler
    >>> class Denoiser(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = torch.nn.Conv2d(1, 1, 3, padding=1)
    ...     def forward(self, x, t):
    ...         return self.layer(x)
    >>> dtrak.DiffusionModel(Denoiser(), DDPMScheduler(), shape=(1, 8, 8))
    DiffusionModel from a wrapped module: Denoiser, 10 parameters
    images of 8 × 8 pixels, grey; 1,000 timesteps; on cpu
    """

    network: nn.Module
    scheduler: Any  # diffusers' DDPMScheduler, FlowMatchEulerDiscreteScheduler, or one that adds noise like these
    shape: tuple[int, int, int]  # (C, H, W) of x_t
    source: str = "a wrapped module"  # what the user typed, for error messages
    autoencoder: Autoencoder | None = None
    # What the network takes beside x_t and t: {"y": "label"}, a function of images, or prompts. None: nothing.
    conditioner: Any = None
    base: str | None = None  # the pipeline that its LoRA belongs to
    family: str = "ddpm"  # the family that saves it
    adapter: Adapter = plain  # how the network is called
    multiple: int | None = None  # x_t may have other sides, if they are multiples of this; None: `shape` alone
    process: NoiseProcess = field(init=False)

    def __post_init__(self) -> None:
        check_parts(self.network, self.shape, self.adapter)
        if self.autoencoder is not None and not isinstance(self.autoencoder, Autoencoder):
            object.__setattr__(self, "autoencoder", as_autoencoder(self.autoencoder))
        object.__setattr__(self, "process", noise_process_of(self.scheduler, self.source))
        check_conditioner(self.conditioner)
        if isinstance(self.conditioner, Mapping) or callable(self.conditioner):
            object.__setattr__(self, "conditioner", Columns(self.conditioner))

    @property
    def conditions(self) -> Conditioner | None:
        """The conditioner, in its final form; None for unconditional models."""
        conditioner: Conditioner | None = self.conditioner
        return conditioner

    @property
    def prompts(self) -> Prompts | None:
        """The conditioner of a model that takes prompts; None for other models."""
        return self.conditioner if isinstance(self.conditioner, Prompts) else None

    def __repr__(self) -> str:
        channels, height, width = self.image_shape
        attributed, every = (sum(one.numel() for one in self.parameters(what).values()) for what in (None, "all"))
        lora = f", {attributed:,} of them in its LoRA" if self.has_lora else ""
        return (
            f"DiffusionModel from {self.source}: {type(self.network).__name__}, {every:,} parameters{lora}\n"
            f"images of {width} × {height} pixels, {'grey' if channels == 1 else 'colour'}; "
            f"{self.process.timesteps:,} timesteps; on {self.device}"
        )

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        if self.autoencoder is None:
            return self.shape
        _, height, width = self.shape
        factor = self.autoencoder.reduction
        return self.autoencoder.channels[0], factor * height, factor * width

    def to(self, device: str | torch.device) -> "DiffusionModel":
        """Move the model and its encoders to a device."""
        self.network.to(device)
        if self.autoencoder is not None:
            self.autoencoder.network.to(device)
        if self.conditions is not None:
            self.conditions.to(device)
        return self

    def denoiser(self) -> "DiffusionModel":
        """Return the model without its encoders of images and prompts, which gradients do not need."""
        return replace(self, autoencoder=None, conditioner=None)

    def predict(self, noisy: Tensor, timesteps: Tensor, condition: Condition | None = None) -> Tensor:
        """Return the output of the network, [B, C, H, W], without a learned variance."""
        time, precision = self.process.time(timesteps), self.precision
        noisy, given = self.process.network_input(noisy, timesteps), condition or {}
        if precision != noisy.dtype and (noisy.is_meta or not torch.is_autocast_enabled(noisy.device.type)):
            noisy = noisy.to(precision)
            given = {name: one.to(precision) if one.is_floating_point() else one for name, one in given.items()}
        return called(self.adapter, self.network, noisy, time, given)

    @property
    def precision(self) -> torch.dtype:
        """The type of the network's weights, apart from those of a LoRA."""
        named = self.network.named_parameters()
        kinds = (one.dtype for name, one in named if LORA not in name and one.is_floating_point())
        return next(kinds, torch.float32)

    def predict_target(self, noisy: Tensor, timesteps: Tensor, condition: Condition | None = None) -> Tensor:
        """Return the network's estimate of `target`, [B, C, H, W]: ε_θ(x_t, t), or v_θ(x_t, t) of a flow."""
        return self.process.target_from_prediction(self.predict(noisy, timesteps, condition), noisy, timesteps)

    def solver(self, steps: int) -> Any:
        """Return the solver that leads from noise to a picture in `steps` steps."""
        if not 1 <= steps <= self.process.timesteps:
            raise UsageError(f"{steps} steps of DDIM: {self.source} takes from 1 to {self.process.timesteps}")
        return self.process.solver(steps)

    def decode(self, x: Tensor) -> Tensor:
        """Return pictures [B, C, H, W] in [−1, 1] from denoised pixels or latents."""
        return (x if self.autoencoder is None else self.autoencoder.decode(x)).clamp(-1, 1)

    def encode(self, pictures: Tensor) -> Tensor:
        """Return the pixels or latents that the network denoises, for pictures [B, C, H, W] in [−1, 1]."""
        return pictures if self.autoencoder is None else self.autoencoder.encode(pictures)

    @property
    def has_lora(self) -> bool:
        return _has_lora(self.network)

    def parameters(self, pattern: "ChosenParameters | None" = None) -> dict[str, nn.Parameter]:
        """Return the parameters whose names contain a match of a regular expression; the pattern "all" selects all.

        They can also be chosen by a list of names, or by a function of name and parameter. The default is the LoRA's
        parameters, if there is a LoRA; else all.
        """
        return chosen_parameters(self.network, pattern)

    @property
    def trained_weights(self) -> dict[str, Tensor]:
        """The weights that training changes: those of the LoRA, if there is one; else all."""
        state = self.network.state_dict()
        return {name: value for name, value in state.items() if LORA in name} if self.has_lora else state

    def load_trained_weights(self, weights: Mapping[str, Tensor]) -> None:
        missing = self.trained_weights.keys() ^ weights.keys()
        if missing:
            raise KeyError(min(missing))
        self.network.load_state_dict(dict(weights), strict=False)

    @property
    def facts(self) -> Facts:
        """Everything that its outputs depend on, read now: nothing is kept, as weights can change without a trace.

        `solver` counts for drawing alone; `reads` are the columns of images that conditions depend on, None for all.
        """
        weights, network = of_network(self.network).values()
        return {
            "weights": weights,
            "network": network if self.adapter is plain else {**network, "adapter": of_object(self.adapter)},
            "autoencoder": None if self.autoencoder is None else self.autoencoder.facts,
            "conditions": None if self.conditions is None else self.conditions.facts,
            "reads": [] if self.conditions is None else self.conditions.reads,
            **self.process.facts,
        }

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with any of its facts, and with the shape of x_t."""
        return hash_of([self.shape, self.facts])

    def fitted_to(self, shape: tuple[int, int, int]) -> "DiffusionModel":
        """Return the model for images of this shape, if it is a latent model that can process them; else unchanged.

        Latent models take any size that their networks can halve or divide into patches. A wrapped module keeps the
        shape that was given for it.
        """
        if self.multiple is None or self.autoencoder is None or shape[0] != self.autoencoder.channels[0]:
            return self
        multiple = self.autoencoder.reduction * self.multiple
        if shape[1] % multiple or shape[2] % multiple:
            return self
        latent = (self.shape[0], shape[1] // self.autoencoder.reduction, shape[2] // self.autoencoder.reduction)
        return replace(self, shape=latent)

    def check_fits(self, shape: tuple[int, int, int], source: str) -> None:
        """Refuse images of another shape than the model's, and say what would fit."""
        if shape == self.image_shape:
            return
        expected, found = (f"{w}×{h} pixels with {c} channel{'s' * (c > 1)}" for c, h, w in (self.image_shape, shape))
        channels, height, width = self.image_shape
        remedies = []
        if shape[1:] != self.image_shape[1:]:
            size = f"--size {height} (size={height} in Python, data.size in a recipe)"
            remedies.append(size if height == width else f"images of {width}×{height}")
        if shape[0] != channels:
            remedies.append("images in colour" if channels == 3 else "grey images")
        raise UsageError(
            f"{source} holds images of {found}, but {self.source} was made for {expected}: "
            f"give {' and '.join(remedies)}"
        )


# Chooses parameters: a regular expression, names, or a function of a name and its parameter.
ChosenParameters = str | Sequence[str] | Callable[[str, nn.Parameter], bool]


def chosen_parameters(network: nn.Module, chosen: ChosenParameters | None) -> dict[str, nn.Parameter]:
    """Return the parameters of a network that are chosen, as `DiffusionModel.parameters` does."""
    named = dict(network.named_parameters())
    if chosen is None:
        chosen = usual_parameters(network)
    if chosen == EVERY_PARAMETER:
        return named
    if callable(chosen):
        check_takes("parameters", chosen, ("name", "parameter"))
        found = {name: value for name, value in named.items() if chosen(name, value)}
        said = f"the function {getattr(chosen, '__name__', 'parameters')} chooses none"
    elif isinstance(chosen, str):
        try:
            found = {name: value for name, value in named.items() if re.search(chosen, name)}
        except re.error as error:
            raise UsageError(f"the parameter pattern {chosen!r} is not a regular expression: {error}") from None
        said = f"no parameter's name matches {chosen!r}"
    else:
        if not isinstance(chosen, Sequence) or not all(isinstance(one, str) for one in chosen):
            raise UsageError(
                f"parameters is {shortened(chosen)}: give a regular expression, a list of names, or a function of a "
                "name and its parameter"
            )
        if unknown := [name for name in chosen if name not in named]:
            raise UsageError(f"parameters: the model has no parameter {unknown[0]!r}; {_parts(named)}")
        found, said = {name: named[name] for name in chosen}, "parameters: the list is empty"
    if not found:
        raise UsageError(f"{said}: {_parts(named)}")
    return found


def usual_parameters(network: nn.Module, apart: bool = False) -> str:
    """Return the pattern that chooses parameters if the user does not: those of the LoRA if there is one, else all.

    If noised copies are kept `apart`, it chooses the later layers of a U-Net. They are as good as all of them
    (docs/results.md), and the backward pass can end at the first of them.
    """
    if _has_lora(network):
        return LORA
    parts = {name.partition(".")[0] for name, _ in network.named_parameters()}
    return LATE if apart and {"down_blocks", "mid_block", "up_blocks", "conv_out"} <= parts else EVERY_PARAMETER


def _parts(named: Mapping[str, nn.Parameter]) -> str:
    return f"the model has {', '.join(sorted({name.split('.')[0] for name in named}))}"


def check_parts(network: object, shape: object, adapter: object) -> None:
    """Refuse what is not a network, a shape or an adapter, before torch raises an unclear error."""
    if not isinstance(network, nn.Module):
        raise UsageError(f"network is a {type(network).__name__}: give an nn.Module")
    if next(network.parameters(), None) is None:
        raise UsageError(f"network is a {type(network).__name__} without parameters: there is nothing to attribute to")
    if not isinstance(shape, Sequence) or len(shape) != 3 or not all(isinstance(one, int) and one > 0 for one in shape):
        raise UsageError(f"shape is {shape!r}: give (channels, height, width) of x_t, such as (3, 32, 32)")
    if not callable(adapter):
        raise UsageError(f"adapter is a {type(adapter).__name__}: give a function of network, x_t, time and condition")


def check_conditioner(conditioner: object) -> None:
    """Refuse what is neither a conditioner nor a description of one."""
    known = conditioner is None or isinstance(conditioner, Mapping) or callable(conditioner)
    if not known and not hasattr(conditioner, "without"):
        raise UsageError(
            f'conditioner is a {type(conditioner).__name__}: give {{"y": "label"}}, by which the network gets a column '
            "of the images as its argument y, or a function of images that returns tensors by name"
        )


def _has_lora(network: nn.Module) -> bool:
    return any(LORA in name for name, _ in network.named_parameters())
