"""The explorer of a run: its answers about the scores of pictures and of training images, as JSON or CSV."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from dtrak.attribution.scores import Scores
from dtrak.contracts import Array
from dtrak.errors import UsageError, check_known
from dtrak.explorer.catalog import Catalog, Entry, Part, strongest
from dtrak.explorer.exploration import Exploration, Scored
from dtrak.explorer.guard import Fit
from dtrak.explorer.kept_pictures import features_of, keep
from dtrak.explorer.pages import ADDED, MAX_SHOWN, Pages, by_id, look_up, page_of, whole
from dtrak.explorer.work_queue import NotReadyError, Work, WorkItem
from dtrak.images.images import Images
from dtrak.kernels.damping import Damping
from dtrak.methods import Method
from dtrak.models.prompts import prompts_of
from dtrak.models.sampling import sample, to_pixels
from dtrak.report.card import card
from dtrak.report.sections import CREDIT_COLUMNS, MAX_GROUPS

CARDS = {"png": "image/png", "pdf": "application/pdf"}


class RunPages(Pages):
    """Handles the requests about one run. Everything that needs its model is done by the queue."""

    def __init__(self, explored: Exploration) -> None:
        run = explored.run
        fit = Fit(run.train_images.shape, run.train_source.crop, run.train_source.size)
        train = Catalog("training images", run.train_images)
        super().__init__(run, explored.opened.model(), train, explored.sets, fit)
        self.explored, self.run, self.methods, self.catalog = explored, run, explored.methods, train
        self.answers = {
            "/api/run": self.described,
            "/api/damping": self.damping,
            "/api/train": self.training_images,
            "/api/answer": self.of_picture,
            "/api/transpose": self.of_training_image,
            "/api/scores.csv": self.csv,
            "/api/card.{ending}": self.card_file,
        }

    # work for the queue

    def prepare_first(self) -> None:
        first = next(iter(self.sets))
        for method in self.methods.values() if self.sets[first].parts else ():
            self.prepare(first, method)

    def prepare(self, set_name: str, method: Method) -> WorkItem:
        """Queue the work that the scores of a set of pictures need."""

        def work() -> None:
            for part in self.sets[set_name].parts[:]:
                folder = features_of(self.run, str(part.images.ids[0])) if set_name == ADDED else None
                self.explored.prepare(part.images, method, folder)

        title = f"{method.name}, {self.sets[set_name].title}"
        return self.queue.add(f"prepare {set_name} {method.name}", title, work, is_bounded=False)

    def score_added(self, picture: Images) -> None:
        for method in self.methods.values():
            self.explored.prepare(picture, method, features_of(self.run, str(picture.ids[0])))

    def forget_added(self, picture: Images) -> None:
        self.explored.forget(picture)

    def drawing(self, seed: int, prompt: str | None) -> tuple[str, Work]:
        taken, how = None if self.model.conditions is None else prompt or "", self.run.generation

        def work() -> str:
            prompts = None if taken is None else [taken]
            drawn = sample(self.model, [seed], how.steps, prompts=prompts, guidance=how.guidance)
            return self.add(keep(self.run, to_pixels(drawn.pictures).numpy()[0], seed, taken))

        return f"seed {seed} {taken or ''}", work

    # scores that are ready

    def scored(self, set_name: str, method: Method, entry: Entry | None = None) -> list[tuple[Part, Scored]]:
        """Return the scores of all pictures of a set that the method can score, or of one and those added with it.

        If they are not computed yet, this queues the work and raises a NotReadyError.
        """
        parts = [*self.sets[set_name].parts] if entry is None else [Part(entry.images, [entry])]
        found = [(part, self.explored.scored(part.images, method)) for part in parts]
        if any(one is None for _, one in found):
            raise NotReadyError(self.prepare(set_name, method))
        succeeded = [(part, one) for part, one in found if isinstance(one, Scored)]
        errors = [one for _, one in found if isinstance(one, UsageError)]
        if errors and not succeeded:
            raise errors[0]
        return succeeded

    def scores_of(self, scored: Scored, entry: Entry, damping: Damping) -> Scores:
        """Return the scores of one of the pictures that were scored together."""
        values = _finite(scored.scores(damping, slice(entry.position, entry.position + 1)), damping)
        train, used = self.run.train_images, self.explored.used(scored.method, damping)
        ids, name = np.array([entry.id]), scored.method.name
        return Scores(values, train.ids, ids, name, train.columns, damping=used, train=train)

    def _asked(self, request: Request) -> tuple[str, Method, Damping]:
        """Return the set, the method and the damping of a request."""
        query = request.query_params
        method = look_up("method", query.get("method", next(iter(self.methods))), self.methods)
        return self.set_of(request), method, Damping.parse(query.get("damping", self.explored.damping))

    def _asked_picture(self, request: Request) -> tuple[Entry, Scores]:
        """Return the picture of a request, and its scores."""
        set_name, method, damping = self._asked(request)
        entry = by_id(self.sets[set_name], request.query_params.get("query", ""))
        ((_, scored),) = self.scored(set_name, method, entry)
        return entry, self.scores_of(scored, entry, damping)

    # answers

    def described(self, request: Request) -> Response:
        """Describe the run: nothing of it changes while the server runs, except the number of added pictures."""
        methods = [
            {
                "name": one.name,
                "summary": one.summary,
                "damped": one.kernel is not None,
                "self_influence": one.self_influence,
            }
            for one in self.methods.values()
        ]
        return JSONResponse(
            {
                "name": self.run.folder.resolve().name,
                "summary": self.run.summary,
                "train": {"count": len(self.catalog), "labels": self.catalog.labels()},
                "methods": methods,
                "damping": self.explored.damping,
                "trust": self.explored.trust,
                "steps": self.run.generation.steps,
                **self.about(),
            }
        )

    def damping(self, request: Request) -> Response:
        """Describe λ for the slider: its position, how many directions it keeps, and the marks of rules and recipe."""
        set_name, method, damping = self._asked(request)
        self.scored(set_name, method)
        used = self.explored.used(method, damping)
        if used is None:
            return JSONResponse({})
        _finite(np.array([used.relative, used.kept]), damping)
        wanted = {rule: rule for rule in self.explored.rules(method)}
        if self.explored.usual_damping not in ("auto", "spectrum"):
            wanted["recipe"] = self.explored.usual_damping
        found = {name: (text, self.explored.used(method, Damping.parse(text))) for name, text in wanted.items()}
        marks = {name: {"damping": text, "relative": one.relative} for name, (text, one) in found.items() if one}
        return JSONResponse({"relative": used.relative, "dimension": used.kept, "rank": used.rank, "marks": marks})

    def training_images(self, request: Request) -> Response:
        """List training images, one page of those that a search finds, by id or by their influence.

        That is on themselves (`self`), or on all pictures of a set (`total`).
        """
        query = request.query_params
        entries, sort = self.catalog.search(query.get("search", ""), query.get("label", "")), query.get("sort", "id")
        check_known("order", sort, ["id", "self", "total"])
        if sort == "id":
            return JSONResponse(page_of(entries, request))
        set_name, method, damping = self._asked(request)
        if sort == "self":  # it is the same for any set, but the set must have pictures
            set_name = next((name for name, one in self.sets.items() if one.parts), set_name)
        scored = self.scored(set_name, method)
        if not scored:
            raise UsageError(f"there are no {self.sets[set_name].title} yet, so there are no scores to sort by")
        if sort == "self":
            values = _finite(self.explored.self_influence(method, damping), damping)
        else:
            values = _finite(np.sum([one.total(damping) for _, one in scored], axis=0), damping)
        entries.sort(key=lambda entry: -values[entry.position])
        page = page_of(entries, request)
        for item in page["items"]:
            item["score"] = float(values[item["number"]])
        return JSONResponse(page)

    def of_picture(self, request: Request) -> Response:
        """Describe the scores of a picture: its strongest proponents and opponents, and the credit of each group."""
        count, (entry, scores) = whole(request, "count", 10, MAX_SHOWN), self._asked_picture(request)
        values, prompts, picture = scores.values[0], self.model.prompts, entry.images.select([entry.position])
        return JSONResponse(
            {
                "query": entry.described(),
                **self.sets[self.set_of(request)].neighbours(entry),
                **_both_ends(self.catalog.entries, values, count),
                "credit": {column: credit_of(scores, column) for column in CREDIT_COLUMNS if column in scores.columns},
                "prompt": None if prompts is None else prompts_of(picture, prompts.template)[0],
            }
        )

    def of_training_image(self, request: Request) -> Response:
        """Describe a training image's scores: the pictures of a set that it helped most, and those it hurt most."""
        set_name, method, damping = self._asked(request)
        entry = by_id(self.catalog, request.query_params.get("train", ""))
        count, row = whole(request, "count", 10, MAX_SHOWN), slice(entry.position, entry.position + 1)
        scored = self.scored(set_name, method)
        parts = [np.empty(0, np.float32), *(one.scores(damping, train=row)[:, 0] for _, one in scored)]
        values, own = _finite(np.concatenate(parts), damping), None
        if method.self_influence:
            own = float(_finite(self.explored.self_influence(method, damping, row), damping)[0])
        return JSONResponse(
            {
                "train": entry.described(),
                **self.catalog.neighbours(entry),
                **_both_ends([one for part, _ in scored for one in part.entries], values, count),
                "self_influence": own,
                "total": float(values.sum()),
            }
        )

    def csv(self, request: Request) -> Response:
        """Send the scores of one picture, or of all pictures of a set: query, rank, train, score, columns."""
        set_name, method, damping = self._asked(request)
        id_ = request.query_params.get("query")
        asked = None if id_ is None else by_id(self.sets[set_name], id_)
        pictures = [(entry, one) for part, one in self.scored(set_name, method, asked) for entry in part.entries]
        for entry, one in pictures[:1]:  # an error has to be found before the table begins
            self.scores_of(one, entry, damping)

        def lines() -> Iterator[str]:
            for number, (entry, one) in enumerate(pictures):
                yield self.scores_of(one, entry, damping).csv(header=number == 0)

        name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{method.name}-{set_name if id_ is None else id_}")
        headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
        return StreamingResponse(lines(), media_type="text/csv", headers=headers)

    def card_file(self, request: Request) -> Response:
        """Send the attribution card of a picture."""
        ending = request.path_params["ending"]
        kind = look_up("kind of card", ending, CARDS)
        entry, scores = self._asked_picture(request)
        picture, trust = entry.images.pixels([entry.position])[0], self.explored.trust.get(scores.method, "")
        content = card(self.run, scores, picture, trust).file(ending)
        name = re.sub(r"[^A-Za-z0-9]+", "-", f"{entry.id}-{scores.method}")
        headers = {"Content-Disposition": f'attachment; filename="{name}-card.{ending}"'}
        return Response(content, media_type=kind, headers=headers)


def _finite(values: Array, damping: Damping) -> Array:
    """Return values that are finite numbers; a λ that is far too small or too large gives others."""
    if not np.isfinite(values).all():
        shown = f"{damping.value:g}" if damping.kind in ("relative", "absolute") else damping.kind
        raise UsageError(f"damping {shown}: with it, scores are not finite numbers")
    return values


def _both_ends(entries: list[Entry], values: Array, count: int) -> dict[str, Any]:
    return {
        "proponents": strongest(entries, values, count),
        "opponents": strongest(entries, -values, count, sign=-1),
        "positive": int((values > 0).sum()),
        "negative": int((values < 0).sum()),
    }


def credit_of(scores: Scores, column: str) -> list[dict[str, Any]]:
    """Return each group's share of one picture's positive scores, with its interval, and of the training images."""
    groups = scores.groups(column)
    names, (shares,), (intervals,) = groups.names, groups.shares, groups.intervals
    of_training, order = groups.sizes / scores.images, np.argsort(-shares, kind="stable")
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
