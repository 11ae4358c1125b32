"""What was measured about scores: which LDS belongs to them, in numbers and in plain words, or what that would take.

RUN/lds/ has a file for each comparison; RUN/lds.json is the last one. Each carries the question that it was measured
with, and belongs to scores of the same question for other pictures. Comparisons of one question are merged.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dtrak.attribution import depends
from dtrak.errors import DtrakError
from dtrak.evaluation.cost import lds_seconds
from dtrak.fingerprints import Facts, hash_of
from dtrak.methods import METHODS
from dtrak.runs.run import Run
from dtrak.wording import roughly, tenths

# What scores are good for that reach fewer than so many of 100 points: rules of thumb, as in docs/concepts.md.
GOOD_FOR = {
    20: "too little to rely on the ranking",
    50: "enough for groups and averages over many pictures",
    80: "enough for groups, and for the strongest images of a picture as hints",
    101: "enough for the strongest images of a picture, with a look at each",
}


OF_METHODS = ("methods", "objectives", "members")  # the facts that methods of one comparison bring


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
    """The LDS of several methods, measured with the same question."""

    methods: dict[str, MethodLDS]
    ceiling: float | None
    perfect: float | None  # what perfect scores would reach; None if it is not known
    queries: int
    subsets: int
    note: str  # how the damping was found
    settings: Mapping[str, Any]  # what it should predict; empty if the file does not say
    facts: Facts  # of the question; empty if the file does not say

    def differences(self, asked: Facts) -> list[str]:
        """Say in words how the question of scores differs from the measured one, for the methods that both have."""
        if not self.facts or not asked:
            return []
        if "checkpoint" in self.settings:
            return [f"the checkpoint {self.settings['checkpoint']}, not the final model"]
        found: dict[str, None] = {}
        in_both = [name for name in self.methods if name in asked["methods"] and name in self.facts["methods"]]
        for name in [one for one in in_both if one in METHODS]:
            then, now = (depends.of_scores(one, METHODS[name], with_queries=False) for one in (self.facts, asked))
            changed = depends.what_changed(then, now)
            if changed is None:
                continue
            before, after = ({**(one.get("settings") or {}), **(one.get("spec") or {})} for one in (then, now))
            in_settings = [
                f"{setting.replace('projection_dim', 'dimensions').replace('_', ' ')} {_plain(value)}, not "
                f"{_plain(after.get(setting))}"  # such as: timesteps 2, not 10
                for setting, value in before.items()
                if str(value) != str(after.get(setting))
            ]
            found |= dict.fromkeys(in_settings or [changed])
        return list(found)


def _plain(value: Any) -> str:
    return "the default" if value is None else str(value).removeprefix("uniform:").removeprefix("visible:")


def read_measurements(run: Run) -> list[Measurement]:
    """Read the comparisons of a run: those of its last scores' question first, then those that say none, the latest
    first."""
    paths = sorted((run.folder / "lds").glob("*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    last = run.folder / "lds.json"
    found: dict[str, Measurement] = {}
    for path in [*paths, *([last] if last.exists() else [])]:
        one = _read(path)
        shared = {name: value for name, value in one.facts.items() if name not in OF_METHODS}
        key = hash_of([shared, dict(one.settings), one.queries, one.subsets])
        earlier = found.pop(key, one)
        facts = {**one.facts, **{name: {**earlier.facts[name], **one.facts[name]} for name in OF_METHODS if one.facts}}
        found[key] = replace(one, methods=earlier.methods | one.methods, facts=facts)
    asked = run.asked
    facts = {} if asked is None else asked["facts"]

    def distance(one: Measurement) -> tuple[int, bool]:
        same_kind = asked is not None and str(one.settings.get("queries")) in run.asked_about(asked)
        return 2 * len(one.differences(facts)) if one.facts else 1, not same_kind

    latest_first = list(found.values())[::-1]
    return sorted(latest_first, key=distance)


@dataclass(frozen=True)
class Trust:
    """The measured LDS of methods, and how its question differs from that of the run's scores."""

    methods: dict[str, MethodLDS]
    ceiling: float | None
    perfect: float | None  # the LDS that perfect scores would reach
    how: str  # how it was measured
    differences: list[str]
    known: bool  # whether the question of the measurement is known

    @property
    def start(self) -> float:
        """Return the value at which the scale of the bars begins."""
        return min(0.0, self.limit or 0.0, *(one.low for one in self.methods.values()))

    @property
    def end(self) -> float:
        """Return the value at which the scale of the bars ends."""
        return max(1.0, self.limit or 0.0, *(one.high for one in self.methods.values()))

    @property
    def limit(self) -> float | None:
        """Return what is marked as the limit: what perfect scores would reach, or else the noise ceiling."""
        return self.ceiling if self.perfect is None else self.perfect

    def percent(self, value: float) -> float:
        """Return the position of a value on the scale, in percent of its length."""
        return 100 * (value - self.start) / (self.end - self.start)

    def words(self, method: str) -> str:
        """Say in a sentence or two how far to trust the scores of a method; empty if it was not measured."""
        if method not in self.methods:
            return ""
        found = self.methods[method]
        measured = f"LDS {tenths(found.lds)} ± {found.std:.1f}"
        if self.perfect is None:
            text = f"On a scale on which guessing has 0 and a perfect prediction 100, these scores have {measured}."
        else:
            points, error = round(100 * found.lds / self.perfect), max(1, round(100 * found.std / self.perfect))
            text = (
                f"Of 100 points that perfect scores would reach, these reach {min(points, 100)}, give or take {error} "
                f"({measured}; perfect scores: about {self.perfect:.0f}). As a rule of thumb, that is "
                f"{next(words for end, words in GOOD_FOR.items() if min(points, 100) < end)}."
            )
        if self.differences:
            text += f" This was measured with other settings: {'; '.join(self.differences)}."
        return text


def trust(measured: list[Measurement], asked: Facts) -> Trust | None:
    """Describe the first measurement, for scores of a question; None if there is no measurement."""
    if not measured:
        return None
    one = measured[0]
    kind = one.settings.get("queries")
    images = "generated pictures" if kind == "generated" else f"{kind} images" if kind else "pictures"
    how = f"Over {one.queries:,} {images} and {one.subsets:,} random subsets; damping {one.note}"
    return Trust(one.methods, one.ceiling, one.perfect, how, one.differences(asked), bool(one.facts))


def trust_of(run: Run) -> Trust | None:
    """Return what was measured about the run's last scores, if anything was."""
    asked = run.asked
    return None if asked is None else trust(read_measurements(run), asked["facts"])


def trust_words(run: Run, found: Trust | None, method: str) -> str:
    """Say how far to trust a method's scores; if that was not measured, say which command does it, and how long."""
    words = "" if found is None else found.words(method)
    if words:
        return words
    seconds = None if run.is_elsewhere else lds_seconds(run)
    takes = "measures it" if seconds is None else f"would take about {roughly(seconds)} on this machine"
    return f"Not measured: `dtrak evaluate lds {run.folder} --method {method}` {takes}."


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
        facts = dict(content.get("question", {}).get("facts", {}))
        settings = {**facts.get("settings", {}), **content.get("settings", {})}
        return Measurement(
            methods,
            _number(content["ceiling"]),
            _number(content.get("perfect")),
            *counts,
            str(content["note"]),
            settings,
            facts,
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DtrakError(f"{path} is not what `dtrak evaluate lds` writes: {error!r}") from error


def _number(found: Any) -> float | None:
    return None if found is None else float(found)
