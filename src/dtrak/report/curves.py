"""Curves: how the LDS changes with a setting, from comparisons that differ in that setting alone."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dtrak.inputs.gradients import Gradients
from dtrak.methods import METHODS
from dtrak.report.comparisons import Measured

# The settings that make a curve: what its title and its axis say.
VARIED = {
    "timesteps": ("K", "K, timesteps averaged over"),
    "projection_dim": ("k", "k, dimensions of the projection"),
    "draws": ("noises", "noises at each timestep"),
    "ensemble_size": ("S", "S, models of the ensemble"),
    "checkpoint_count": ("checkpoints", "checkpoints averaged over"),
    "objective": ("η", "η, from the training loss (½) to L_Square (1)"),
}
ETA = {"None": 1.0, "square": 1.0, "simple": 0.5}  # objectives that are points of the interpolation
MOST = 12  # curves on a page


@dataclass(frozen=True)
class Sample:
    x: float
    lds: float
    std: float | None = None
    chosen: bool = False  # whether it is the one that the method goes on with


@dataclass(frozen=True)
class Curve:
    title: str  # LDS against …
    axis: str
    lines: dict[str, list[Sample]]  # by method, x rising
    note: str
    log: bool
    ceiling: float | None


def damping_curve(measured: Sequence[Measured]) -> Curve | None:
    """LDS against λ, of the first comparison that has tried several."""
    for one in measured:
        lines = {
            method: [Sample(x, lds, chosen=x == found.damping) for x, lds in sorted(found.curve)]
            for method, found in one.methods.items()
            if found.curve
        }
        if lines:
            where = "the subsets that it was chosen on" if "other" in one.note else "the reported subsets"
            note = f"On {where}; the open mark is what was chosen. {_told(one.settings, 'damping')}"
            return Curve("damping λ", "λ ÷ mean eigenvalue", lines, note, True, None)
    return None


def setting_curves(measured: Sequence[Measured]) -> list[Curve]:
    """LDS against every setting that takes several values while all others are equal."""
    found = [curve for setting in VARIED for curve in _curves_over(setting, measured)]
    return found[:MOST]


def _curves_over(setting: str, measured: Sequence[Measured]) -> list[Curve]:
    groups: dict[tuple[str, str], dict[float, Measured]] = {}  # by the kind of values, and all other settings
    for one in measured:
        kind, x = _numeric(setting, one.settings.get(setting))
        if x is not None:
            rest = {name: str(value) for name, value in one.settings.items() if name != setting}
            others = json.dumps([rest, one.queries, one.subsets], sort_keys=True)
            groups.setdefault((kind, others), {}).setdefault(x, one)
    curves = []
    for (kind, _), of_group in groups.items():
        lines: dict[str, list[Sample]] = {}
        for x, one in sorted(of_group.items()):
            for method, result in one.methods.items():
                if _matters(setting, method):
                    lines.setdefault(method, []).append(Sample(x, result.lds, result.std))
        lines = {method: samples for method, samples in lines.items() if len(samples) > 1}
        if lines:
            last = next(reversed(of_group.values()))
            xs = [sample.x for samples in lines.values() for sample in samples]
            log = min(xs) > 0 and max(xs) / min(xs) >= 4
            title, axis = VARIED[setting]
            note = _told(last.settings, setting)
            curves.append(Curve(title, f"{axis}, {kind}" if kind else axis, lines, note, log, last.ceiling))
    return curves


def _numeric(setting: str, value: Any) -> tuple[str, float | None]:
    """A setting's value as a number, and of which kind it is: different kinds make different curves."""
    text = str(value)
    if setting == "objective":
        interpolated = re.fullmatch(r"interpolated\((.+)\)", text)
        return "", float(interpolated[1]) if interpolated else ETA.get(text)
    kind, _, digits = text.rpartition(":")  # cumulative:10
    return kind, float(digits) if digits.isdigit() else None


def _matters(setting: str, method: str) -> bool:
    """Whether the setting can change the method's scores."""
    source = METHODS[method].source if method in METHODS else None
    if not isinstance(source, Gradients):
        return False
    match setting:
        case "objective":
            return source.any_objective
        case "ensemble_size":
            return source.models == "retrained"
        case "checkpoint_count":
            return source.models == "checkpoints"
        case _:
            return True


def _told(settings: Mapping[str, Any], but: str) -> str:
    """The settings that all points of a curve share: K = 10, k = 4096, …"""
    words = {
        "timesteps": "K\u00a0=\u00a0{}",
        "projection_dim": "k\u00a0=\u00a0{}",
        "objective": "objective {}",
        "queries": "{} pictures",
        "damping": "damping {}",
    }
    there = [setting for setting in words if setting != but and settings.get(setting) is not None]
    return ", ".join(words[setting].format(settings[setting]) for setting in there) + "." * bool(there)
