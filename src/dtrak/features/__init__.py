"""Features on disk: the store, the loop that fills it, image encoders, sampling trajectories."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtrak.features.store import FeatureStore, Manifest

__all__ = ["FeatureStore", "Manifest"]


def __getattr__(name: str) -> Any:
    """Import on first use: encoders and their names are known without torch."""
    if name in __all__:
        from dtrak.features.store import store

        return getattr(store, name)
    raise AttributeError(f"module 'dtrak.features' has no attribute {name!r}")
