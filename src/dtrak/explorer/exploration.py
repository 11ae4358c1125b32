"""Open a run for the explorer: its images, its sets of pictures, and everything that scores them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.attribution.opened import Opened
from dtrak.attribution.settings import Settings
from dtrak.engines import Engine
from dtrak.errors import DtrakError, UsageError
from dtrak.explorer.catalog import Catalog, Entry, Part
from dtrak.explorer.kept_pictures import features_of, keep, kept, name_of, remove_oldest
from dtrak.explorer.scoring import Scored, Scorer
from dtrak.explorer.uploads import Fit
from dtrak.explorer.work_queue import NotReadyError, WorkItem, WorkQueue
from dtrak.images.images import Images, ImageSource
from dtrak.methods import EVERY_METHOD, Method, chosen_methods
from dtrak.models import DiffusionModel
from dtrak.models.sampling import sample, to_pixels
from dtrak.progress import say
from dtrak.report.measured import trust_of, trust_words
from dtrak.runs.run import Run
from dtrak.runs.run_questions import last_question, opened_run, question_of, settings_of

MAX_VALIDATION = 200  # validation images that are shown
GENERATED, ADDED = "generated", "asked"  # names of sets of pictures; ADDED has those that users of the page add


@dataclass(frozen=True, eq=False)
class Exploration:
    """One run, its model and methods. Everything that needs the model is done by the `queue`."""

    run: Run
    model: DiffusionModel
    train: Catalog
    sets: dict[str, Catalog]
    methods: dict[str, Method]
    scorer: Scorer
    queue: WorkQueue
    damping: str  # for requests that do not give one
    usual_damping: str
    trust: dict[str, str]  # how far to trust each method, in words

    def scored(self, set_name: str, method: Method) -> list[tuple[Part, Scored]]:
        """Return the scores of all pictures of a set that the method can score.

        If they are not computed yet, this queues the work and raises a NotReadyError.
        """
        found = [(part, self.scorer.scored(part.images, method)) for part in [*self.sets[set_name].parts]]
        if any(scored is None for _, scored in found):
            raise NotReadyError(self.prepare(set_name, method))
        succeeded = [(part, scored) for part, scored in found if isinstance(scored, Scored)]
        errors = [scored for _, scored in found if isinstance(scored, UsageError)]
        if errors and not succeeded:
            raise errors[0]
        return succeeded

    def scored_with(self, set_name: str, entry: Entry, method: Method) -> Scored:
        """Return the scores of a picture, and of those that were added together with it."""
        scored = self.scorer.scored(entry.images, method)
        if scored is None:
            raise NotReadyError(self.prepare(set_name, method))
        if isinstance(scored, UsageError):
            raise scored
        return scored

    def prepare(self, set_name: str, method: Method) -> WorkItem:
        """Queue the work that the scores of a set of pictures need."""

        def work() -> None:
            for part in self.sets[set_name].parts[:]:
                self._prepare(set_name, part.images, method)

        title = f"{method.name}, {self.sets[set_name].title}"
        return self.queue.add(f"prepare {set_name} {method.name}", title, work, is_bounded=False)

    def _prepare(self, set_name: str, pictures: Images, method: Method) -> None:
        """Prepare the scores of pictures; an added picture has its own folder, which is removed together with it."""
        folder = None
        if set_name == ADDED:
            folder = features_of(self.run, str(pictures.ids[0]))
        self.scorer.prepare(pictures, method, folder)

    def prepare_first(self) -> None:
        """Queue the work for the first set of pictures, by all methods."""
        first = next(iter(self.sets))
        for method in self.methods.values() if self.sets[first].parts else ():
            self.prepare(first, method)

    @property
    def fit(self) -> Fit:
        train = self.run.train_source
        return Fit(self.run.train_images.shape, train.crop, train.size)

    @property
    def takes_prompts(self) -> bool:
        return self.model.conditions is not None

    def add_picture(self, pixels: NDArray[np.uint8], prompt: str | None = None) -> WorkItem:
        """Queue the work to keep and score a new picture [H, W, C] of the run's shape."""
        return self.queue.add(
            f"picture {name_of(pixels, prompt)}",
            "your picture",
            lambda: self._add(keep(self.run, pixels, prompt=prompt)),
        )

    def add_seed(self, seed: int, prompt: str | None = None) -> WorkItem:
        """Queue the work to draw the picture of a seed, and of a prompt if the model takes one, and to score it."""
        generation, prompt_taken = self.run.generation, (prompt or "") if self.takes_prompts else None

        def work() -> str:
            prompts = None if prompt_taken is None else [prompt_taken]
            drawn = sample(self.model, [seed], generation.steps, prompts=prompts, guidance=generation.guidance)
            return self._add(keep(self.run, to_pixels(drawn.pictures).numpy()[0], seed, prompt_taken))

        return self.queue.add(f"seed {seed} {prompt_taken or ''}", f"the picture of seed {seed}", work)

    def _add(self, picture: Images) -> str:
        """Score a new picture by all methods and return its id; remove the oldest pictures if there are too many."""
        for method in self.methods.values():
            self._prepare(ADDED, picture, method)
        id_, added = str(picture.ids[0]), self.sets[ADDED]
        added.add(picture)
        left = remove_oldest(self.run, but=id_)
        for entry in [one for one in added.entries if one.id not in left]:
            added.remove(entry)
            self.scorer.forget(entry.images)
            self.queue.forget(entry.id)
        return id_


def explore(
    run: Run,
    device: str,
    *,
    methods: str | None = None,
    typed: Mapping[str, Any] | None = None,
    cache: Path | None = None,
    engine: Engine | None = None,
) -> Exploration:
    """Open a run, with the question of its last scores, or else of its recipe, changed by those `typed`."""
    run.check_trained()
    asked = run.asked
    sets = _sets(run, None if asked is None else run.asked_about(asked))
    first = next((one.parts[0].images for one in sets.values() if one.parts), run.train_images.select([0]))
    usual = settings_of(run)

    def opened(names: str | None, settings: Settings) -> Opened:
        changed = replace(settings, **(typed or {}))
        chosen = chosen_methods(methods or names, changed.objective)
        question = question_of(run, ImageSource(first), chosen, changed)
        every = (methods or names) == EVERY_METHOD
        return opened_run(run, question, cache=cache, device=device, engine=engine, every=every)

    as_recipe = None if run.is_elsewhere else run.recipe.attribution.method, usual
    try:
        last = last_question(run)
        names = None if last is None else ",".join(one.name for one in last.methods)
        found = opened(*as_recipe) if last is None else opened(names, last.settings)
    except DtrakError as error:  # files of the last attribution may have been removed
        if asked is None:
            raise
        say(f"Scores are computed as the recipe says, not as in the last attribution: {error}")
        found = opened(*as_recipe)
    measured = trust_of(run)
    return Exploration(
        run=run,
        model=found.model(),
        train=Catalog("training images", run.train_images),
        sets=sets,
        methods={method.name: method for method in found.question.methods},
        scorer=Scorer(found),
        queue=WorkQueue(),
        damping=str(found.question.settings.damping),
        usual_damping=str(usual.damping),
        trust={method.name: trust_words(run, measured, method.name) for method in found.question.methods},
    )


def _sets(run: Run, attributed: str | None) -> dict[str, Catalog]:
    """Return the sets of pictures that the run has."""
    validation, sources = run.validation_source, {}
    if (run.folder / GENERATED).exists():
        sources[GENERATED] = "generated pictures", str(run.folder / GENERATED)
    if validation is not None:
        sources["validation"] = "validation images", str(validation.source)
    if attributed is not None and attributed not in [source for _, source in sources.values()]:
        sources["attributed"] = "pictures attributed last", attributed
    sets = {}
    for name, (title, source) in sources.items():
        is_validation = validation is not None and name == "validation"
        try:
            images = validation.open() if validation is not None and is_validation else run.query_images(source)
        except UsageError as error:  # they may have been removed
            say(f"Left out: {title}: {error}")
            continue
        shown = images.select(range(min(MAX_VALIDATION, len(images)))) if is_validation else images
        sets[name] = Catalog(title, shown)
    return sets | {ADDED: Catalog("pictures added here", *kept(run))}
