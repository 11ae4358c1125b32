"""What the page is told, as JSON and CSV: who made a picture, what a training image did, and who is owed for it."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.attribution.scores import Scores
from dtrak.errors import UsageError
from dtrak.explorer.catalog import Catalog, Entry, labels
from dtrak.explorer.exploration import Exploration
from dtrak.explorer.kept_pictures import MOST_BYTES, MOST_PICTURES
from dtrak.explorer.scoring import Scored
from dtrak.kernels.damping import Damping
from dtrak.methods import Method
from dtrak.methods.method import Values
from dtrak.report.credit import CREDIT_COLUMNS, MAX_GROUPS
from dtrak.report.thumbnails import SMALL


def described_run(exploration: Exploration) -> dict[str, Any]:
    """What does not change while the server runs, but for the number of pictures asked about.

    `kept` is how many of these there are at the most, and how many bytes they take with their features.
    """
    run, (_, height, width) = exploration.run, exploration.run.train_images.shape
    return {
        "name": run.folder.resolve().name,
        "summary": run.recipe.summary,
        "train": {"count": len(exploration.train), "labels": labels(exploration.train)},
        "sets": [{"name": name, "title": one.title, "count": len(one)} for name, one in exploration.sets.items()],
        "methods": [
            {
                "name": one.name,
                "summary": one.summary,
                "damped": one.damped,
                "self_influence": one.tells_self_influence,
            }
            for one in exploration.methods.values()
        ],
        "damping": exploration.damping,
        "kept": {"pictures": MOST_PICTURES, "bytes": MOST_BYTES},
        "steps": run.recipe.generation.steps,
        "prompts": run.recipe.family.takes_prompts,
        "width": width,
        "height": height,
        "pixelated": max(height, width) <= SMALL,
    }


def scale(exploration: Exploration, method: Method, damping: Damping) -> dict[str, Any]:
    """What the slider shows: where λ lies, how many directions it keeps, and the marks beside it."""
    scorer, recipe = exploration.scorer, exploration.recipe_damping
    if method.name not in scorer.kernels:  # it has no λ, or there is no picture to ask about
        return {}
    found = scorer.scale(method, damping)
    _check_finite(np.array([found.relative, found.dimension]), damping)
    marks = {rule: {"damping": rule, "relative": relative} for rule, relative in found.rules.items()}
    if recipe not in ("auto", "spectrum"):
        marks["recipe"] = {"damping": recipe, "relative": scorer.scale(method, Damping.parse(recipe)).relative}
    return {"relative": found.relative, "dimension": found.dimension, "rank": found.rank, "marks": marks}


def listed(entries: list[Entry], page: int, size: int) -> dict[str, Any]:
    """A page of some images, counted from 0."""
    page = min(page, max(0, len(entries) - 1) // size)  # the last one, where there are no longer so many
    shown = entries[page * size : (page + 1) * size]
    return {"total": len(entries), "page": page, "size": size, "items": [described(one) for one in shown]}


def described(entry: Entry) -> dict[str, Any]:
    return {"id": entry.id, "number": entry.number, "columns": entry.columns}


def influences(
    exploration: Exploration, set_name: str, method: Method, damping: Damping, kind: str
) -> NDArray[np.floating[Any]]:
    """Of every training image on itself (`self`), or on all pictures of a set together (`total`), [N]."""
    if kind == "self":  # which is the same for any pictures, but there must be some to score
        set_name = next((name for name, one in exploration.sets.items() if one.parts), set_name)
    scored = exploration.scored(set_name, method)
    if not scored:
        raise UsageError(f"there are no {exploration.sets[set_name].title} yet: there is nothing to sort by")
    if kind == "self":
        values: NDArray[np.floating[Any]] = exploration.scorer.self_influence(method, damping)
    else:
        values = np.asarray(np.sum([one.total(damping) for _, one in scored], axis=0))
    _check_finite(values, damping)
    return values


def answer(
    exploration: Exploration, set_name: str, entry: Entry, method: Method, damping: Damping, count: int
) -> dict[str, Any]:
    """Who made a picture: its strongest proponents and opponents, and the credit of each group."""
    scores = scores_of(exploration, exploration.scored_with(set_name, entry, method), entry, method, damping)
    train, values = exploration.train, scores.values[0]
    return {
        "query": described(entry),
        **_neighbours(exploration.sets[set_name], entry),
        "proponents": _strongest(train.entries, values, count),
        "opponents": _strongest(train.entries, -values, count, sign=-1),
        "positive": int((values > 0).sum()),
        "negative": int((values < 0).sum()),
        "credit": {column: _credit(scores, column) for column in CREDIT_COLUMNS if column in scores.columns},
    }


def transposed(
    exploration: Exploration, set_name: str, entry: Entry, method: Method, damping: Damping, count: int
) -> dict[str, Any]:
    """What a training image did: the pictures of a set that it helped most, and those that it hurt most."""
    scored = exploration.scored(set_name, method)
    own = slice(entry.position, entry.position + 1)
    values = np.concatenate([np.empty(0, np.float32), *(one.scores(damping, train=own)[:, 0] for _, one in scored)])
    _check_finite(values, damping)
    entries = [entry for part, _ in scored for entry in part.entries]
    return {
        "train": described(entry),
        **_neighbours(exploration.train, entry),
        "self_influence": _self_influence(exploration, entry, method, damping),
        "proponents": _strongest(entries, values, count),
        "opponents": _strongest(entries, -values, count, sign=-1),
        "positive": int((values > 0).sum()),
        "negative": int((values < 0).sum()),
        "total": float(values.sum()),
    }


def csv(
    exploration: Exploration, pictures: Sequence[tuple[Entry, Scored]], method: Method, damping: Damping
) -> Iterator[str]:
    """A line for every picture and training image, the strongest first: query, rank, train, score and the columns."""
    for number, (entry, scored) in enumerate(pictures):
        yield scores_of(exploration, scored, entry, method, damping).csv(header=number == 0)


def scores_of(exploration: Exploration, scored: Scored, entry: Entry, method: Method, damping: Damping) -> Scores:
    """Of one picture among those that were scored together."""
    values = scored.scores(damping, slice(entry.position, entry.position + 1))
    _check_finite(values, damping)
    train = exploration.run.train_images
    return Scores(values, train.ids, np.array([entry.id]), method.name, train.columns)


def _check_finite(values: NDArray[Any], damping: Damping) -> None:
    if not np.isfinite(values).all():
        shown = f"{damping.value:g}" if damping.kind in ("relative", "absolute") else damping.kind
        raise UsageError(f"damping {shown}: it makes scores that no number can hold")


def _neighbours(catalog: Catalog, entry: Entry) -> dict[str, str | None]:
    """The ids of the images before and after it."""
    before, after = catalog.neighbours(entry)
    return {"previous": None if before is None else before.id, "next": None if after is None else after.id}


def _strongest(entries: list[Entry], keys: Values, count: int, sign: int = 1) -> list[dict[str, Any]]:
    """The entries of the largest keys above zero, the largest first, with `sign` × key as their score."""
    order = np.argsort(-keys, kind="stable")[:count]
    return [described(entries[n]) | {"score": sign * float(keys[n])} for n in order if keys[n] > 0]


def _credit(scores: Scores, column: str) -> list[dict[str, Any]]:
    """Each group's share of one picture's positive scores, and of the training images, the largest first."""
    names, (shares,) = scores.shares(column)
    of_training = scores.sizes(column) / len(scores.train_ids)
    order = np.argsort(-shares, kind="stable")
    ranked = [(str(names[g]), float(shares[g]), float(of_training[g])) for g in order]
    rest = ranked[MAX_GROUPS:]
    if rest:
        ranked[MAX_GROUPS:] = [(f"{len(rest)} more", sum(one[1] for one in rest), sum(one[2] for one in rest))]
    return [{"group": group, "share": share, "of_training": of_training} for group, share, of_training in ranked]


def _self_influence(exploration: Exploration, entry: Entry, method: Method, damping: Damping) -> float | None:
    if not method.tells_self_influence:
        return None
    found = exploration.scorer.self_influence(method, damping, slice(entry.position, entry.position + 1))
    _check_finite(found, damping)
    return float(found[0])
