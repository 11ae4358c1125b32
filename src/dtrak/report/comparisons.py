"""Read the LDS of each method from the files that `dtrak evaluate lds` writes.

RUN/lds/ has a file for each comparison; RUN/lds.json is the last one. Comparisons with the same settings are merged.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dtrak.errors import DtrakError

# The settings that change a method's scores.
SCORE_SETTINGS = (
    "objective",
    "timesteps",
    "draws",
    "noise",
    "projection",
    "projection_dim",
    "parameters",
    "seed",
    "damping",
)


@dataclass(frozen=True)
class MethodLDS:
    """The LDS of one method, in percent."""

    lds: float
    std: float  # of a bootstrap over subsets
    low: float  # of the 95% interval
    high: float
    damping: float | None  # ÷ the mean eigenvalue
    curve: list[tuple[float, float]]  # (damping, LDS), if several dampings were tried


@dataclass(frozen=True)
class Measurement:
    """The LDS of several methods, measured with the same settings."""

    methods: dict[str, MethodLDS]
    ceiling: float | None
    perfect: float | None  # what perfect scores would reach; None if it is not known
    queries: int
    subsets: int
    note: str  # how the damping was found
    settings: Mapping[str, Any]  # empty if the file does not have them

    def differences(self, attribution: Mapping[str, Any]) -> list[str]:
        """Describe each setting in which these scores differ from those of the run's attribution."""
        checkpoint = self.settings.get("checkpoint")
        return [f"the checkpoint {checkpoint}, not the final model"] * (checkpoint is not None) + [
            f"{_name(setting)} {_described(self.settings[setting])}, not {_described(attribution[setting])}"
            for setting in SCORE_SETTINGS
            if setting in self.settings
            and setting in attribution
            and str(self.settings[setting]) != str(attribution[setting])
        ]


def read_comparisons(folder: Path) -> list[Measurement]:
    """Read the comparisons of a run's folder, the latest first."""
    paths = sorted((folder / "lds").glob("*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    last = folder / "lds.json"
    found: dict[str, Measurement] = {}
    for path in [*paths, *([last] if last.exists() else [])]:
        one = _read(path)
        key = json.dumps([one.settings, one.queries, one.subsets], sort_keys=True)
        earlier = found.pop(key, one)
        found[key] = replace(one, methods=earlier.methods | one.methods)
    return list(found.values())[::-1]


def nearest(measured: list[Measurement], attribution: Mapping[str, Any]) -> list[Measurement]:
    """Sort measurements by how near their settings are to the attribution's.

    First come those without a difference, then those with unknown settings, then those with more and more differences.
    """

    def distance(one: Measurement) -> tuple[int, bool, bool]:
        differing = len(one.differences(attribution))
        damped_alike = str(one.settings.get("damping")) == str(attribution.get("damping"))
        same_queries = str(one.settings.get("queries")) in str(attribution.get("queries"))
        return (2 * differing if one.settings else 1), not damped_alike, not same_queries

    return sorted(measured, key=distance)


def _read(path: Path) -> Measurement:
    try:
        content = json.loads(path.read_text())
        methods = {
            name: MethodLDS(
                lds=float(found["lds"]),
                std=float(found["bootstrap_std"]),
                low=float(found["interval"][0]),
                high=float(found["interval"][1]),
                damping=_number(found["damping"]),
                curve=[(float(damping), float(lds)) for damping, lds in found.get("curve", [])],
            )
            for name, found in content["methods"].items()
        }
        counts = int(content["queries"]), int(content["subsets"])
        settings = dict(content.get("settings", {}))
        return Measurement(
            methods,
            _number(content["ceiling"]),
            _number(content.get("perfect")),
            *counts,
            str(content["note"]),
            settings,
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DtrakError(f"{path} is not what `dtrak evaluate lds` writes: {error!r}") from error


def _number(found: Any) -> float | None:
    return None if found is None else float(found)


def _name(setting: str) -> str:
    return setting.replace("projection_dim", "dimensions").replace("_", " ")


def _described(value: Any) -> str:
    return "the default" if value is None else str(value)
