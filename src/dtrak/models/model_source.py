"""Where a model comes from: plain values that can be compared and saved, or an object that Python code has."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dtrak.devices import devices
from dtrak.errors import UsageError, check_known
from dtrak.models import load_model, wrap
from dtrak.models.diffusion import DiffusionModel

Shape = tuple[int, int, int]  # (C, H, W)


@dataclass(frozen=True)
class ModelSource:
    """A model as it was given: what `load_model` takes, or an object, which is taken as it is."""

    source: Any  # a folder, a file or a hub id; or a DiffusionModel, or a pipeline of diffusers
    loras: tuple[tuple[str, float], ...] = ()  # each with its strength
    prompt: str | None = None
    precision: str | None = None

    def open(self, shape: Shape | None = None, device: str | None = None) -> DiffusionModel:
        """Return the model, for images of a shape if it takes several; it is opened once.

        A model that was given by its name goes to the GPU if there is one and no `device` says otherwise.
        """
        if device is not None:
            check_known("device", device.removesuffix(":0"), devices())
        found = self._opened.to(device or (devices()[0] if isinstance(self.source, str) else self._opened.device))
        return found if shape is None else found.fitted_to(shape)

    @cached_property
    def _opened(self) -> DiffusionModel:
        if not isinstance(self.source, str):
            return wrap(self.source)
        if any(strength != 1 for _, strength in self.loras) or len(self.loras) > 1:
            raise UsageError("give one LoRA, at its full strength")
        lora = self.loras[0][0] if self.loras else None
        return load_model(self.source, lora, self.prompt, self.precision)

    @property
    def name(self) -> str:
        """Return what was typed: the LoRA, if there is one, or the model."""
        return self.loras[0][0] if self.loras else str(self.source)
