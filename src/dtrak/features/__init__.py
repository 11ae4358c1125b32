"""Features on disk: this room has the store, the loop that fills it, image encoders and sampling trajectories."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtrak.features.store import FeatureStore

__all__ = ["FeatureStore"]


def __getattr__(name: str) -> Any:
    """Import the store when it is first used, so that the names of encoders are known without torch."""
    if name in __all__:
        return getattr(import_module("dtrak.features.store"), name)
    raise AttributeError(f"module 'dtrak.features' has no attribute {name!r}")
