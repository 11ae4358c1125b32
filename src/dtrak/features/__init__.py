"""Features on disk: the store, the loop that fills it, image encoders, sampling trajectories."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtrak.features.store import FeatureStore, Manifest

__all__ = ["FeatureStore", "Manifest"]


def __getattr__(name: str) -> Any:
    """Import on first use: encoders and their names are known without torch."""
    if name in __all__:
        return getattr(import_module("dtrak.features.store"), name)
    raise AttributeError(f"module 'dtrak.features' has no attribute {name!r}")
