"""A diffusion model: a network that removes noise, the process that adds it, and the shape of the noised images.

Most models work on pixels. Latent models also have an autoencoder, and conditional models a conditioner, which makes
what the network takes beside x_t and t. Any `nn.Module` can be wrapped: an adapter says how it is called.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler
from torch import Tensor, nn

from dtrak.checks import shortened
from dtrak.errors import UsageError, check_takes
from dtrak.models.adapters import Adapter, called, described, plain, prediction_of
from dtrak.models.autoencoder import Autoencoder, as_autoencoder
from dtrak.models.columns import Columns, FromImages
from dtrak.models.conditions import Condition, Conditioner
from dtrak.models.fingerprints import digest_of
from dtrak.models.noise_process import NoiseProcess, Solver, noise_process_of
from dtrak.models.prompts import Prompts

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
    scheduler: DDPMScheduler | FlowMatchEulerDiscreteScheduler  # or one that diffusers converts to one of these
    shape: tuple[int, int, int]  # (C, H, W) of x_t
    source: str = "a wrapped module"  # what the user typed, for error messages
    autoencoder: Autoencoder | None = None
    # What the network takes beside x_t and t: {"y": "label"}, a function of images, or prompts. None: nothing.
    conditioner: Conditioner | Mapping[str, str] | FromImages | None = None
    base: str | None = None  # the pipeline that its LoRA belongs to
    family: str = "ddpm"  # the family that saves it
    adapter: Adapter = plain  # how the network is called
    multiple: int | None = None  # x_t may have other sides, if they are multiples of this; None: `shape` alone
    noise_process: NoiseProcess = field(init=False)

    def __post_init__(self) -> None:
        check_parts(self.network, self.shape, self.adapter)
        if self.autoencoder is not None and not isinstance(self.autoencoder, Autoencoder):
            object.__setattr__(self, "autoencoder", as_autoencoder(self.autoencoder))
        object.__setattr__(self, "noise_process", noise_process_of(self.scheduler, self.source))
        check_conditioner(self.conditioner)
        if isinstance(self.conditioner, Mapping) or callable(self.conditioner):
            object.__setattr__(self, "conditioner", Columns(self.conditioner))

    @property
    def conditions(self) -> Conditioner | None:
        """The conditioner, in its final form; None for unconditional models."""
        return self.conditioner  # type: ignore[return-value]

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
            f"{self.timesteps:,} timesteps; on {self.device}"
        )

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def timesteps(self) -> int:
        """T, the length of the noise schedule."""
        return self.noise_process.timesteps

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

    def add_noise(self, clean: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """Return x_t, [B, C, H, W]."""
        return self.noise_process.add_noise(clean, noise, timesteps)

    def signal_and_noise(self, timesteps: Tensor) -> tuple[Tensor, Tensor]:
        """Return s and σ of x_t = s x + σ ε, each [B]."""
        one = torch.ones(len(timesteps), 1, 1, 1)
        parts = (self.add_noise(one, 0 * one, timesteps), self.add_noise(0 * one, one, timesteps))
        return parts[0].flatten(), parts[1].flatten()

    @property
    def visible(self) -> Tensor:
        """How much of an image is left at each timestep: s / √(s² + σ²), [T]."""
        signal, noise = self.signal_and_noise(torch.arange(self.timesteps))
        return signal / torch.hypot(signal, noise)

    def predict(self, noisy: Tensor, timesteps: Tensor, condition: Condition | None = None) -> Tensor:
        """Return the output of the network, [B, C, H, W], without a learned variance."""
        time, precision = self.noise_process.time(timesteps), self.precision
        noisy = self.noise_process.network_input(noisy, timesteps)
        if precision != noisy.dtype and (noisy.is_meta or not torch.is_autocast_enabled(noisy.device.type)):
            condition = {name: _in_precision(value, precision) for name, value in (condition or {}).items()}
            noisy = noisy.to(precision)
        return prediction_of(called(self.adapter, self.network, noisy, time, condition or {}), noisy)

    @property
    def precision(self) -> torch.dtype:
        """The type of the network's weights, apart from those of a LoRA."""
        return next(
            (
                one.dtype
                for name, one in self.network.named_parameters()
                if LORA not in name and one.is_floating_point()
            ),
            torch.float32,
        )

    def predict_target(self, noisy: Tensor, timesteps: Tensor, condition: Condition | None = None) -> Tensor:
        """Return the network's estimate of `target`, [B, C, H, W]: ε_θ(x_t, t), or v_θ(x_t, t) of a flow."""
        return self.noise_process.target_from_prediction(self.predict(noisy, timesteps, condition), noisy, timesteps)

    def target(self, clean: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """Return ε, or v of a flow, [B, C, H, W]."""
        return self.noise_process.target(clean, noise, timesteps)

    def training_target(self, clean: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """Return what the network is trained to predict, [B, C, H, W]."""
        return self.noise_process.training_target(clean, noise, timesteps)

    def elbo_weights(self, timesteps: Tensor) -> Tensor:
        """Return the weights of L_Simple in the ELBO, [B]."""
        return self.noise_process.elbo_weights(timesteps)

    def solver(self, steps: int) -> Solver:
        """Return the solver that leads from noise to a picture in `steps` steps."""
        if not 1 <= steps <= self.timesteps:
            raise UsageError(f"{steps} steps of DDIM: {self.source} takes from 1 to {self.timesteps}")
        return self.noise_process.solver(steps)

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
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with any weight, layer or setting of the model and its noise process."""
        parts = [repr(self.shape).encode(), self.noise_process.fingerprint_bytes()]
        if self.autoencoder is not None:
            parts.append(self.autoencoder.fingerprint.encode())
        if self.conditions is not None:
            parts.append(self.conditions.fingerprint.encode())
        if self.adapter is not plain:
            parts.append(described(self.adapter).encode())
        return digest_of(self.network, *parts)

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


def _in_precision(value: Tensor, precision: torch.dtype) -> Tensor:
    return value.to(precision) if value.is_floating_point() else value


def _has_lora(network: nn.Module) -> bool:
    return any(LORA in name for name, _ in network.named_parameters())
