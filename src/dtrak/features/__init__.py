"""Features on disk: this room has the store, the loop that fills it, image encoders and sampling trajectories."""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import the store when it is first used, so that a spec of features is known without torch."""
    if name == "FeatureStore":
        from dtrak.features.store import FeatureStore

        return FeatureStore
    raise AttributeError(f"module 'dtrak.features' has no attribute {name!r}")
