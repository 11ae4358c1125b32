"""Methods that were published after the paper, beside the paper's and our own; and which part of `das` does what."""

from collections.abc import Callable

import numpy as np
from findings import FREE, JOURNEY, OF_CHECKPOINTS, Finding
from study import MISSING, Array, Study, middles

from dtrak.features.featurizing import residuals_of
from dtrak.features.model_inputs import model_inputs
from dtrak.features.spec import Spec
from dtrak.kernels import ArrayRows, Ridge
from dtrak.kernels.damping import GRIDS
from dtrak.methods import METHODS
from dtrak.tables import Cell, Entry, Table

SUCCESSORS = ("retrac", "nda", "das", "ek-fac")
COMPARED = ("d-trak", "step-trak")
EVEN = middles(10)  # timesteps of the successors that take every copy for itself: step-trak's own are not theirs
OF_COPIES = ("retrac", "nda", "das")
# Whether scores are squared, times the residuals, and over 1 − leverage
PARTS: dict[str, tuple[bool, bool, bool]] = {
    "das": (True, True, True),
    "without the residuals": (True, False, True),
    "without the leverages": (True, True, False),
    "the squared kernel alone": (True, False, False),
    "without the square": (False, True, True),
    "the kernel alone": (False, False, False),
}


def successors(study: Study) -> Finding:
    """Each with λ by rule, and with the best λ in hindsight; then das part by part."""
    methods = [*SUCCESSORS, *COMPARED]
    damped = [method for method in methods if METHODS[method].kernel is not None]
    for words, damping, asked in (("damping auto", "auto", methods), ("the best λ in hindsight", "best", damped)):
        rows: list[list[Entry]] = [
            [method, *(_cell(study, method, kind, damping) for kind in study.query_kinds)] for method in asked
        ]
        yield Table(["method", *study.query_kinds], rows, f"Successors of the paper, {words}, K = 10")
    found = study.of_copies("avg", _scores_of_parts(study), [*PARTS], timesteps=EVEN)
    parts: list[list[Entry]] = [[part, *(found[kind][part].cell for kind in study.query_kinds)] for part in PARTS]
    yield Table(["scores", *study.query_kinds], parts, "das part by part, the best λ in hindsight")


def every_method(study: Study) -> Finding:
    """Every method that needs no retrained model, the paper's and later ones, with λ by rule and with the best λ."""
    columns = [(k, damping) for k in (10, 100) for damping in ("auto", "best")]
    for kind in study.query_kinds:
        names = [*FREE, *([JOURNEY] if kind == "generated" else []), *SUCCESSORS, "step-trak"]
        rows: list[list[Entry]] = [
            [name, *(_cell(study, name, kind, damping, k) for k, damping in columns)] for name in names
        ]
        heads = [f"K = {k}, {'λ by rule' if damping == 'auto' else 'the best λ'}" for k, damping in columns]
        yield Table(["method", *heads], rows, f"Every method, {kind} queries")


def _cell(study: Study, method: str, kind: str, damping: str, k: int = 10) -> Cell:
    needs_checkpoints = method in ("retrac", *OF_CHECKPOINTS)
    if needs_checkpoints and (not study.checkpoints or k == 100):  # with K = 100 they would take most of the time
        return MISSING
    more = study.checkpoints if needs_checkpoints else {}
    more |= study.drawn if method == JOURNEY else {}
    timesteps = middles(k) if method in OF_COPIES else k
    return study.measure((method,), queries=kind, timesteps=timesteps, damping=damping, **more)[method].cell


def _scores_of_parts(study: Study) -> Callable[[dict[str, Array], list[str]], dict[str, dict[str, list[Array]]]]:
    def scores(rows: dict[str, Array], kinds: list[str]) -> dict[str, dict[str, list[Array]]]:
        """For each part and each kind of queries, the scores with every λ of the grid."""
        inputs = model_inputs(study.model, study.benchmark.train)
        folder = study.cache(None, timesteps=EVEN)
        residuals = residuals_of(study.model, inputs, Spec(timesteps=EVEN), folder, {"timesteps": EVEN})
        copies = rows["train"].shape[1]
        total = {part: {kind: [np.float32(0)] * len(GRIDS["log"]) for kind in kinds} for part in PARTS}
        for copy in range(copies):
            kernel = Ridge.of(ArrayRows(np.ascontiguousarray(rows["train"][:, copy])))
            asked = {kind: kernel.coordinates(rows[kind][:, [copy]]) for kind in kinds}
            for place, one in enumerate(GRIDS["log"]):
                damping = one.absolute(kernel)
                left = np.clip(1 - kernel.squares(damping, 1), 1e-6, None)
                for part, (squares, has_residuals, has_leverages) in PARTS.items():
                    factor = (residuals[:, copy] if has_residuals else 1) / (left if has_leverages else 1)
                    for kind in kinds:
                        changes = kernel.scores(asked[kind], damping) * factor
                        total[part][kind][place] += (changes**2 if squares else changes).astype(np.float32) / copies
        return total  # type: ignore[return-value]

    return scores
