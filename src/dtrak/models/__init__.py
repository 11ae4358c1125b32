"""The models that can be attributed: one small interface over diffusers, which nothing else in the package knows."""

from dtrak.models.ddpm import load as load_model
from dtrak.models.diffusion import DiffusionModel

__all__ = ["DiffusionModel", "load_model"]
