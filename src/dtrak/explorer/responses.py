"""Make the JSON and CSV for the page: the scores of pictures and of training images, and the credit of groups."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.attribution.scores import Scores
from dtrak.errors import UsageError
from dtrak.explorer.catalog import Entry, labels
from dtrak.explorer.exploration import Exploration
from dtrak.explorer.kept_pictures import MAX_BYTES, MAX_PICTURES
from dtrak.explorer.lists import described, neighbours, strongest
from dtrak.explorer.scoring import Scored
from dtrak.figures.html_pictures import SMALL
from dtrak.kernels.damping import Damping
from dtrak.methods import Method
from dtrak.models.prompts import prompts_of
from dtrak.report.card import CardContent
from dtrak.report.card import card as draw_card
from dtrak.report.credit import CREDIT_COLUMNS, MAX_GROUPS


def described_run(exploration: Exploration) -> dict[str, Any]:
    """Describe the run: nothing of it changes while the server runs, except the number of added pictures.

    `kept` has the limits for added pictures: their number, and the bytes that they and their features may take.
    """
    run, (_, height, width) = exploration.run, exploration.run.train_images.shape
    return {
        "name": run.folder.resolve().name,
        "summary": run.summary,
        "train": {"count": len(exploration.train), "labels": labels(exploration.train)},
        "sets": [{"name": name, "title": one.title, "count": len(one)} for name, one in exploration.sets.items()],
        "methods": [
            {
                "name": one.name,
                "summary": one.summary,
                "damped": one.kernel is not None,
                "self_influence": one.self_influence,
            }
            for one in exploration.methods.values()
        ],
        "damping": exploration.damping,
        "trust": exploration.trust,
        "kept": {"pictures": MAX_PICTURES, "bytes": MAX_BYTES},
        "steps": run.generation.steps,
        "prompts": exploration.takes_prompts,
        "width": width,
        "height": height,
        "pixelated": max(height, width) <= SMALL,
    }


def scale(exploration: Exploration, method: Method, damping: Damping) -> dict[str, Any]:
    """Describe λ for the slider: its position, how many directions it keeps, and the marks of rules and recipe."""
    scorer, recipe = exploration.scorer, exploration.usual_damping
    if method.name not in scorer.kernels:  # the method has no λ, or there is no picture
        return {}
    found = scorer.scale(method, damping)
    used = found.used
    _check_finite(np.array([used.relative, used.kept]), damping)
    marks = {rule: {"damping": rule, "relative": relative} for rule, relative in found.rules.items()}
    if recipe not in ("auto", "spectrum"):
        marks["recipe"] = {"damping": recipe, "relative": scorer.scale(method, Damping.parse(recipe)).used.relative}
    return {"relative": used.relative, "dimension": used.kept, "rank": used.rank, "marks": marks}


def influences(
    exploration: Exploration, set_name: str, method: Method, damping: Damping, kind: str
) -> NDArray[np.floating[Any]]:
    """Return the influence [N] of every training image on itself (`self`), or on all pictures of a set (`total`)."""
    if kind == "self":  # it is the same for any set, but the set must have pictures
        set_name = next((name for name, one in exploration.sets.items() if one.parts), set_name)
    scored = exploration.scored(set_name, method)
    if not scored:
        raise UsageError(f"there are no {exploration.sets[set_name].title} yet, so there are no scores to sort by")
    if kind == "self":
        values: NDArray[np.floating[Any]] = exploration.scorer.self_influence(method, damping)
    else:
        values = np.asarray(np.sum([one.total(damping) for _, one in scored], axis=0))
    _check_finite(values, damping)
    return values


def picture_scores(
    exploration: Exploration, set_name: str, entry: Entry, method: Method, damping: Damping, count: int
) -> dict[str, Any]:
    """Describe the scores of a picture: its strongest proponents and opponents, and the credit of each group."""
    scores = scores_of(exploration, exploration.scored_with(set_name, entry, method), entry, method, damping)
    train, values = exploration.train, scores.values[0]
    return {
        "query": described(entry),
        **neighbours(exploration.sets[set_name], entry),
        "proponents": strongest(train.entries, values, count),
        "opponents": strongest(train.entries, -values, count, sign=-1),
        "positive": int((values > 0).sum()),
        "negative": int((values < 0).sum()),
        "credit": {column: credit_of(scores, column) for column in CREDIT_COLUMNS if column in scores.columns},
        "prompt": _prompt(exploration, entry),
    }


def training_image_scores(
    exploration: Exploration, set_name: str, entry: Entry, method: Method, damping: Damping, count: int
) -> dict[str, Any]:
    """Describe the scores of a training image: the pictures of a set that it helped most, and those it hurt most."""
    scored = exploration.scored(set_name, method)
    row = slice(entry.position, entry.position + 1)
    values = np.concatenate([np.empty(0, np.float32), *(one.scores(damping, train=row)[:, 0] for _, one in scored)])
    _check_finite(values, damping)
    entries = [entry for part, _ in scored for entry in part.entries]
    return {
        "train": described(entry),
        **neighbours(exploration.train, entry),
        "self_influence": _self_influence(exploration, entry, method, damping),
        "proponents": strongest(entries, values, count),
        "opponents": strongest(entries, -values, count, sign=-1),
        "positive": int((values > 0).sum()),
        "negative": int((values < 0).sum()),
        "total": float(values.sum()),
    }


def csv(
    exploration: Exploration, pictures: Sequence[tuple[Entry, Scored]], method: Method, damping: Damping
) -> Iterator[str]:
    """Yield a table of every picture and training image, highest scores first: query, rank, train, score, columns."""
    for number, (entry, scored) in enumerate(pictures):
        yield scores_of(exploration, scored, entry, method, damping).csv(header=number == 0)


def card(exploration: Exploration, set_name: str, entry: Entry, method: Method, damping: Damping, ending: str) -> bytes:
    """Return the attribution card of a picture as a file."""
    scored = exploration.scored_with(set_name, entry, method)
    scores = scores_of(exploration, scored, entry, method, damping)
    run = exploration.run
    content = CardContent(
        run=run.folder.resolve().name,
        summary=run.summary,
        picture=entry.images.pixels([entry.position])[0],
        scores=scores,
        train=run.train_images,
        trust=exploration.trust.get(method.name, ""),
    )
    return draw_card(content).file(ending)


def scores_of(exploration: Exploration, scored: Scored, entry: Entry, method: Method, damping: Damping) -> Scores:
    """Return the scores of one of the pictures that were scored together."""
    values = scored.scores(damping, slice(entry.position, entry.position + 1))
    _check_finite(values, damping)
    train = exploration.run.train_images
    used = exploration.scorer.scale(method, damping).used if method.name in exploration.scorer.kernels else None
    return Scores(values, train.ids, np.array([entry.id]), method.name, train.columns, damping=used)


def _check_finite(values: NDArray[Any], damping: Damping) -> None:
    if not np.isfinite(values).all():
        shown = f"{damping.value:g}" if damping.kind in ("relative", "absolute") else damping.kind
        raise UsageError(f"damping {shown}: with it, scores are not finite numbers")


def _prompt(exploration: Exploration, entry: Entry) -> str | None:
    """Return the prompt that a picture is scored with; None if the model takes no prompts."""
    prompts = exploration.model.prompts
    return None if prompts is None else prompts_of(entry.images.select([entry.position]), prompts.template)[0]


def credit_of(scores: Scores, column: str) -> list[dict[str, Any]]:
    """Return each group's share of one picture's positive scores, with its interval, and of the training images."""
    groups = scores.groups(column)
    names, (shares,), (intervals,) = groups.names, groups.shares, groups.intervals
    of_training = groups.sizes / scores.images
    order = np.argsort(-shares, kind="stable")
    ranked: list[dict[str, Any]] = [
        {
            "group": str(names[g]),
            "share": float(shares[g]),
            "interval": intervals[g].tolist(),
            "of_training": float(of_training[g]),
        }
        for g in order[:MAX_GROUPS]
    ]
    if len(rest := order[MAX_GROUPS:]):
        shared = {"share": float(shares[rest].sum()), "of_training": float(of_training[rest].sum())}
        ranked.append({"group": f"{len(rest)} more", "interval": None, **shared})
    return ranked


def _self_influence(exploration: Exploration, entry: Entry, method: Method, damping: Damping) -> float | None:
    if not method.self_influence:
        return None
    found = exploration.scorer.self_influence(method, damping, slice(entry.position, entry.position + 1))
    _check_finite(found, damping)
    return float(found[0])
