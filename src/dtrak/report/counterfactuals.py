"""The section on counterfactuals: originals beside the pictures of models trained without their strongest images."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.cbook import boxplot_stats
from numpy.typing import NDArray

from dtrak.errors import DtrakError
from dtrak.figures.html_pictures import ShownPicture

MAX_ORIGINALS = 60  # that are shown
SIDE = 128  # larger pictures are embedded at this size
WHISKER = 1.5  # the greatest length of a whisker, in lengths of the box

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Box:
    """One box of a boxplot: a method's quartiles, and the ends of the whiskers, at most WHISKER boxes from them."""

    method: str
    low: float  # the end of the lower whisker
    first: float  # quartile
    median: float
    third: float  # quartile
    high: float  # the end of the upper whisker
    values: list[float]


@dataclass(frozen=True)
class Panel:
    """A boxplot of one distance, with a box for each method."""

    title: str
    better: str  # the direction in which scores are better
    digits: int  # after the point
    boxes: list[Box]
    start: float  # of the scale
    end: float

    def percent(self, value: float) -> float:
        """Return the position of a value on the scale, in percent of its length."""
        return 100 * (value - self.start) / (self.end - self.start)


@dataclass(frozen=True)
class Redrawn:
    """A picture that was drawn without one method's strongest images, and its distances to the original."""

    method: str
    picture: str  # its name in `Counterfactual.shown`
    l2: float
    cosine: float


@dataclass(frozen=True)
class Original:
    """An original picture, and how it was drawn again for each method."""

    id: str
    picture: str  # its name in `Counterfactual.shown`
    redrawn: list[Redrawn]


@dataclass(frozen=True)
class Counterfactual:
    """The content of the section for one timestep of the trajectory."""

    step: int | None  # None is the end of the trajectory, the finished picture
    train: int
    removed: int
    queries: int
    panels: list[Panel]
    originals: list[Original]
    shown: dict[str, ShownPicture]


def read_counterfactuals(folder: Path) -> list[Counterfactual]:
    """Read a run's counterfactuals: those of the finished pictures first, then the smallest timestep first."""
    home = folder / "counterfactual"
    paths = [home / "counterfactual.json", *home.glob("step-*/counterfactual.json")]
    found = [_read(path) for path in paths if path.exists()]
    return sorted(found, key=lambda one: -1 if one.step is None else one.step)


def _read(path: Path) -> Counterfactual:
    try:
        content = json.loads(path.read_text())
        with np.load(path.with_name("pictures.npz"), allow_pickle=False) as file:
            arrays = dict(file)
        return _counterfactual(content, arrays)
    except Exception as error:  # zip and numpy raise many kinds of errors for damaged files
        raise DtrakError(f"{path.parent} is not what `dtrak evaluate counterfactual` writes: {error!r}") from error


def _counterfactual(content: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Counterfactual:
    """Collect the section's content from counterfactual.json and pictures.npz."""
    methods: list[str] = arrays["methods"].tolist()
    values = {
        (measure, method): np.array(content["methods"][method][measure]["per_query"])
        for measure in ("l2", "cosine")
        for method in methods
    }
    prefix = "c" if content["step"] is None else f"c{content['step']}-"
    ids = arrays["ids"].tolist()[:MAX_ORIGINALS]
    shown: dict[str, ShownPicture] = {}
    originals = []
    for q, id_ in enumerate(ids):
        shown[f"{prefix}{q}"] = _shown(arrays["originals"], q)
        redrawn = []
        for index, method in enumerate(methods):
            name = f"{prefix}{q}-{index}"
            shown[name] = _shown(arrays["counterfactuals"][index], q)
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


def _shown(pictures: NDArray[np.uint8], position: int) -> ShownPicture:
    return ShownPicture(lambda: pictures[position], SIDE)


def _panel(title: str, better: str, digits: int, by_method: dict[str, Floats]) -> Panel:
    boxes = [_box(method, values) for method, values in by_method.items()]
    low, high = min(min(box.values) for box in boxes), max(max(box.values) for box in boxes)
    margin = 0.04 * (high - low) or 1.0
    return Panel(title, better, digits, boxes, low - margin, high + margin)


def _box(method: str, values: Floats) -> Box:
    (found,) = boxplot_stats(values, whis=WHISKER)
    low, first, median, third, high = (float(found[name]) for name in ("whislo", "q1", "med", "q3", "whishi"))
    return Box(method, low, first, median, third, high, values.tolist())
