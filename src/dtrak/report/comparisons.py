"""What was measured of the run's scores: the LDS of each method, from the files that `dtrak evaluate lds` leaves.

RUN/lds/ has a file for each comparison, RUN/lds.json is the last one. Those with the same settings are one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dtrak.errors import DtrakError

# What decides, beside the method, which scores come out.
DECIDING = ("objective", "timesteps", "draws", "noise", "projection", "projection_dim", "parameters", "seed", "damping")


@dataclass(frozen=True)
class LDSOf:
    """The LDS of one method, in percent."""

    lds: float
    std: float  # of a bootstrap over subsets
    low: float  # the 95% interval
    high: float
    damping: float | None  # ÷ the mean eigenvalue
    curve: list[tuple[float, float]]  # of LDS over damping, where several were tried


@dataclass(frozen=True)
class Measured:
    """Methods that were measured in the same way."""

    methods: dict[str, LDSOf]
    ceiling: float | None
    queries: int
    subsets: int
    note: str  # how the damping came about
    settings: Mapping[str, Any]  # empty if they were not kept

    def differences(self, attribution: Mapping[str, Any]) -> list[str]:
        """In which settings these scores were made otherwise than those of the run's attribution."""
        return [
            f"{_name(setting)} {_said(self.settings[setting])}, not {_said(attribution[setting])}"
            for setting in DECIDING
            if setting in self.settings
            and setting in attribution
            and str(self.settings[setting]) != str(attribution[setting])
        ]


def read_comparisons(folder: Path) -> list[Measured]:
    """Of a run's folder, the latest first."""
    paths = sorted((folder / "lds").glob("*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    last = folder / "lds.json"
    found: dict[str, Measured] = {}
    for path in [*paths, *([last] if last.exists() else [])]:
        one = _read(path)
        same = json.dumps([one.settings, one.queries, one.subsets], sort_keys=True)
        earlier = found.pop(same, one)
        found[same] = replace(one, methods=earlier.methods | one.methods)
    return list(found.values())[::-1]


def nearest(measured: list[Measured], attribution: Mapping[str, Any]) -> list[Measured]:
    """Those first whose settings could be the attribution's; then the unknown ones, then those that differ least."""

    def distance(one: Measured) -> tuple[int, bool, bool]:
        differing = len(one.differences(attribution))
        damped_alike = str(one.settings.get("damping")) == str(attribution.get("damping"))
        same_queries = str(one.settings.get("queries")) in str(attribution.get("queries"))
        return (2 * differing if one.settings else 1), not damped_alike, not same_queries

    return sorted(measured, key=distance)


def _read(path: Path) -> Measured:
    try:
        content = json.loads(path.read_text())
        methods = {
            name: LDSOf(
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
        return Measured(methods, _number(content["ceiling"]), *counts, str(content["note"]), settings)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DtrakError(f"{path} is not what `dtrak evaluate lds` writes: {error!r}") from error


def _number(found: Any) -> float | None:
    return None if found is None else float(found)


def _name(setting: str) -> str:
    return setting.replace("projection_dim", "dimensions").replace("_", " ")


def _said(value: Any) -> str:
    return "its own" if value is None else str(value)
