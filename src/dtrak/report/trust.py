"""How far scores can be trusted, in numbers and in plain words; or what it would take to measure it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dtrak.evaluation.time_of_lds import lds_seconds
from dtrak.report.comparisons import Measurement, MethodLDS, nearest, read_comparisons
from dtrak.runs.run import Run
from dtrak.wording import roughly, tenths

# What scores are good for that reach fewer than so many of 100 points: rules of thumb, as in docs/concepts.md.
GOOD_FOR = {
    20: "too little to rely on the ranking",
    50: "enough for groups and averages over many pictures",
    80: "enough for groups, and for the strongest images of a picture as hints",
    101: "enough for the strongest images of a picture, with a look at each",
}


@dataclass(frozen=True)
class Trust:
    """The measured LDS of methods, and how its settings differ from those of the run's scores."""

    methods: dict[str, MethodLDS]
    ceiling: float | None
    perfect: float | None  # the LDS that perfect scores would reach
    how: str  # how it was measured
    differences: list[str]
    known: bool  # whether the settings of the measurement are known

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


def trust(measured: list[Measurement], attribution: Mapping[str, Any]) -> Trust | None:
    """Describe the measurement whose settings are nearest to the attribution's; None if there is no measurement."""
    if not measured:
        return None
    one = measured[0]
    kind = one.settings.get("queries")
    images = "generated pictures" if kind == "generated" else f"{kind} images" if kind else "pictures"
    how = f"Over {one.queries:,} {images} and {one.subsets:,} random subsets; damping {one.note}"
    differences = one.differences(attribution)
    return Trust(one.methods, one.ceiling, one.perfect, how, differences, bool(one.settings))


def trust_of(run: Run) -> Trust | None:
    """Return what was measured about the run's last scores, if anything was."""
    settings = run.read_attribution()
    return None if settings is None else trust(nearest(read_comparisons(run.folder), settings), settings)


def trust_words(run: Run, found: Trust | None, method: str) -> str:
    """Say how far to trust a method's scores; if that was not measured, say what it would take."""
    words = "" if found is None else found.words(method)
    return words or not_measured(run, method)


def not_measured(run: Run, method: str) -> str:
    """Say which command would measure it, and how long that would take on this machine."""
    seconds = lds_seconds(run)
    takes = "measures it" if seconds is None else f"would take about {roughly(seconds)} on this machine"
    return f"Not measured: `dtrak evaluate lds {run.folder} --method {method}` {takes}."
