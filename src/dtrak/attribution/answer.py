"""From a question to scores.

scores = mean over models, objectives and copies of  formula(arrays, λ)        [Q, N], squared if the method says so
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dtrak.attribution.formula_inputs import inputs_of
from dtrak.attribution.opened import Opened
from dtrak.attribution.scores import Scores, refuse_not_finite
from dtrak.attribution.top_scores import TopScores
from dtrak.contracts import EVERY, Array, Values
from dtrak.errors import DtrakError
from dtrak.images.metadata import plain_column
from dtrak.kernels.damping import Damping, UsedDamping
from dtrak.methods.method import Method

MATRIX_BYTES = 256 << 20  # so much of the matrix of scores is in memory if only the strongest are wanted


def answer(opened: Opened, top: int | None = None) -> dict[str, Scores]:
    """Return the scores by each method; with `top`, only so many of the highest and of the lowest of each query."""
    for spec, required in opened.required.items():  # every image passes forward once for all methods
        for member in range(len(opened.members(spec.models))):
            for side in ("train", "queries", "trajectories"):
                if getattr(required, side):
                    opened.stores(spec, side, member)
    scores = {method.name: answer_by(opened, method, top) for method in opened.question.methods}
    opened.remember()
    return scores


def answer_by(opened: Opened, method: Method, top: int | None = None) -> Scores:
    """Return the scores by one method. With `top`, few rows of [Q, N] are in memory at a time."""
    train, queries, question = opened.images("train"), opened.images("queries"), opened.question
    damping = Damping.parse(question.settings.damping)
    asked = question.asked(opened.facts)
    if top is None:
        (values,), own, used = score(opened, method, [damping])
        return Scores(
            values, train.ids, queries.ids, method.name, train.columns, own, used, train, queries, question=asked
        )
    method = replace(method, self_influence=False)
    columns = {name: plain_column(column) for name, column in train.columns.items()}
    strongest, at_once = TopScores(top, columns), max(1, MATRIX_BYTES // (4 * len(train)))
    for start in range(0, len(queries), at_once):
        some = slice(start, start + at_once)
        (values,), _, used = score(opened, method, [damping], some)
        refuse_not_finite(values, method.name, queries.ids[some], train.ids, "the scores cannot be ranked")
        strongest.add(values)
    values, held = strongest.held()
    ids, chosen = train.ids[held.positions], {name: column[held.positions] for name, column in columns.items()}
    return Scores(values, ids, queries.ids, method.name, chosen, None, used, train, queries, held, asked)


def score(
    opened: Opened, method: Method, dampings: Sequence[Damping], queries: slice = EVERY
) -> tuple[list[Values], Values | None, UsedDamping | None]:
    """Return scores [Q, N] for each damping, self-influence [N] and the first λ: the means over all inputs.

    Inputs follow one after the other, as the kernels of several models would fill the memory.
    """
    totals, own, count, used = list[Values](), np.zeros(len(opened.images("train"))), 0, None
    for one in inputs_of(opened, method, queries):
        found = [checked(one.scores(method, damping), method, opened, queries) for damping in dampings]
        totals = [total + more for total, more in zip(totals, found, strict=True)] if totals else found
        if one.fitted is not None:
            λ = one.fitted.absolute(dampings[0])
            if method.self_influence:
                own += one.fitted.kernel.squares(λ, power=1)
            used = used or UsedDamping.of(one.fitted.kernel, dampings[0], λ)
        count += 1
    values = [squared(method, total / np.float32(count)) for total in totals]
    itself = squared(method, own / count).astype(np.float32) if method.self_influence else None
    return values, itself, used


def squared(method: Method, scores: Array) -> Array:
    """Return s·|s| of scores s if the method squares, and the scores themselves if not. The order stays the same."""
    return scores * np.abs(scores) if method.square else scores


def checked(values: Values, method: Method, opened: Opened, queries: slice) -> Values:
    """Refuse what is no matrix of scores: a method of one's own may return anything."""
    expected = len(range(len(opened.images("queries")))[queries]), len(opened.images("train"))
    if not isinstance(values, np.ndarray) or values.shape != expected:
        shape = list(getattr(values, "shape", [])) or type(values).__name__  # of anything
        raise DtrakError(f"{method.name} returned {shape}, but scores are [queries, training images] {list(expected)}")
    return values
