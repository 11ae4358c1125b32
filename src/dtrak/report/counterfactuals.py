"""Counterfactuals: each original beside what models draw that were trained without its strongest images."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.cbook import boxplot_stats
from numpy.typing import NDArray

from dtrak.errors import DtrakError
from dtrak.report.thumbnails import Shown

PICTURES = 60  # originals shown, at most
SIDE = 128  # larger pictures are embedded at this size
WHISKER = 1.5  # boxes' lengths, that a whisker reaches at most

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Box:
    """How one method's values are spread: quartiles, and the farthest values within WHISKER boxes of them."""

    method: str
    low: float
    first: float
    median: float
    third: float
    high: float
    values: list[float]


@dataclass(frozen=True)
class Panel:
    """One measure of distance, the boxes of all methods on one scale."""

    title: str
    better: str  # in which direction the scores are better
    digits: int
    boxes: list[Box]
    start: float
    end: float

    def percent(self, value: float) -> float:
        """Where a value stands on the scale."""
        return 100 * (value - self.start) / (self.end - self.start)


@dataclass(frozen=True)
class Redrawn:
    method: str
    picture: str  # its name among the shown
    l2: float
    cosine: float


@dataclass(frozen=True)
class Original:
    id: str
    picture: str
    redrawn: list[Redrawn]


@dataclass(frozen=True)
class Counterfactual:
    """At one step of the trajectory; None is its end."""

    step: int | None
    train: int
    removed: int
    queries: int
    panels: list[Panel]
    originals: list[Original]
    shown: dict[str, Shown]


def read_counterfactuals(folder: Path) -> list[Counterfactual]:
    """Of a run's folder: the finished pictures first, then the steps of the trajectory from its end."""
    home = folder / "counterfactual"
    paths = [home / "counterfactual.json", *home.glob("step-*/counterfactual.json")]
    found = [_read(path) for path in paths if path.exists()]
    return sorted(found, key=lambda one: -1 if one.step is None else one.step)


def _read(path: Path) -> Counterfactual:
    try:
        content = json.loads(path.read_text())
        with np.load(path.with_name("pictures.npz"), allow_pickle=False) as file:
            arrays = dict(file)
        return _laid_out(content, arrays)
    except Exception as error:  # on damaged files, zip and numpy raise a dozen kinds
        raise DtrakError(f"{path.parent} is not what `dtrak evaluate counterfactual` writes: {error!r}") from error


def _laid_out(content: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Counterfactual:
    methods: list[str] = arrays["methods"].tolist()
    values = {
        (measure, method): np.array(content["methods"][method][measure]["per_query"])
        for measure in ("l2", "cosine")
        for method in methods
    }
    prefix = "c" if content["step"] is None else f"c{content['step']}-"
    ids = arrays["ids"].tolist()[:PICTURES]
    shown: dict[str, Shown] = {}
    originals = []
    for q, id_ in enumerate(ids):
        shown[f"{prefix}{q}"] = _shown(arrays["originals"], q)
        redrawn = []
        for place, method in enumerate(methods):
            name = f"{prefix}{q}-{place}"
            shown[name] = _shown(arrays["counterfactuals"][place], q)
            redrawn.append(Redrawn(method, name, *(float(values[measure, method][q]) for measure in ("l2", "cosine"))))
        originals.append(Original(str(id_), f"{prefix}{q}", redrawn))
    panels = [
        _panel("ℓ2 distance to the original", "further is better", 2, {m: values["l2", m] for m in methods}),
        _panel(
            f"Cosine of {Path(content['encoder']).name}", "less is better", 3, {m: values["cosine", m] for m in methods}
        ),
    ]
    queries = len(content["queries"])
    return Counterfactual(content["step"], content["train"], content["removed"], queries, panels, originals, shown)


def _shown(pictures: NDArray[np.uint8], position: int) -> Shown:
    return Shown(lambda: pictures[position], SIDE)


def _panel(title: str, better: str, digits: int, by_method: dict[str, Floats]) -> Panel:
    boxes = [_box(method, values) for method, values in by_method.items()]
    low, high = min(min(box.values) for box in boxes), max(max(box.values) for box in boxes)
    margin = 0.04 * (high - low) or 1.0
    return Panel(title, better, digits, boxes, low - margin, high + margin)


def _box(method: str, values: Floats) -> Box:
    (found,) = boxplot_stats(values, whis=WHISKER)
    low, first, median, third, high = (float(found[name]) for name in ("whislo", "q1", "med", "q3", "whishi"))
    return Box(method, low, first, median, third, high, values.tolist())
