"""What the explorer knows of a run: its images, the pictures that can be asked about, and who answers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak.engines import Engine
from dtrak.errors import UsageError
from dtrak.explorer.catalog import Catalog, Entry, Part
from dtrak.explorer.kept_pictures import features_of, keep, kept, name_of, remove_oldest
from dtrak.explorer.questions import Question, Questions
from dtrak.explorer.scoring import Scored, Scorer
from dtrak.images.images import Images
from dtrak.inputs.settings import Settings
from dtrak.inputs.task import Task
from dtrak.methods import Method, split_methods
from dtrak.models import DiffusionModel
from dtrak.models.sampling import sample, to_pixels
from dtrak.progress import say
from dtrak.runs.attributing import last_attribution, prepare_run, settings_of
from dtrak.runs.run import Run

VALIDATION = 200  # so many of the validation images are asked about
GENERATED, ASKED = "generated", "asked"  # sets of pictures


class NotReadyError(Exception):
    """The answer takes some work, which is under way."""

    def __init__(self, question: Question) -> None:
        super().__init__(question.title)
        self.question = question


@dataclass(frozen=True, eq=False)
class Exploration:
    """One run, its model and methods. Everything that needs the model goes through `questions`."""

    run: Run
    model: DiffusionModel
    train: Catalog
    sets: dict[str, Catalog]
    methods: dict[str, Method]
    scorer: Scorer
    questions: Questions
    damping: str  # unless another is asked for
    recipe_damping: str

    def scored(self, set_name: str, method: Method) -> list[tuple[Part, Scored]]:
        """The scores of all pictures of a set that the method can answer about; the work begins if it has not."""
        found = [(part, self.scorer.scored(part.images, method)) for part in [*self.sets[set_name].parts]]
        if any(scored is None for _, scored in found):
            raise NotReadyError(self.prepare(set_name, method))
        answers = [(part, scored) for part, scored in found if isinstance(scored, Scored)]
        refusals = [scored for _, scored in found if isinstance(scored, UsageError)]
        if refusals and not answers:
            raise refusals[0]
        return answers

    def scored_with(self, set_name: str, entry: Entry, method: Method) -> Scored:
        """The scores of a picture and of those that came with it."""
        scored = self.scorer.scored(entry.images, method)
        if scored is None:
            raise NotReadyError(self.prepare(set_name, method))
        if isinstance(scored, UsageError):
            raise scored
        return scored

    def prepare(self, set_name: str, method: Method) -> Question:
        """Have the scores of a set of pictures made ready."""

        def work() -> None:
            for part in self.sets[set_name].parts[:]:
                self._prepare(set_name, part.images, method)

        title = f"{method.name}, {self.sets[set_name].title}"
        return self.questions.ask(f"prepare {set_name} {method.name}", title, work, is_bounded=False)

    def _prepare(self, set_name: str, pictures: Images, method: Method) -> None:
        """What is made of a picture that was asked about lies apart, as it goes when the picture does."""
        folder = None
        if set_name == ASKED:
            folder = features_of(self.run, str(pictures.ids[0])) / self.scorer.task.folder.name
        self.scorer.prepare(pictures, method, folder)

    def prepare_first(self) -> None:
        """Begin with the first set of pictures, by all methods."""
        first = next(iter(self.sets))
        for method in self.methods.values() if self.sets[first].parts else ():
            self.prepare(first, method)

    @property
    def takes_prompts(self) -> bool:
        return self.model.prompts is not None

    def ask_picture(self, pixels: NDArray[np.uint8], prompt: str | None = None) -> Question:
        """Who made this picture [H, W, C], which is of the run's shape?"""
        return self.questions.ask(
            f"picture {name_of(pixels, prompt)}",
            "your picture",
            lambda: self._answer(keep(self.run, pixels, prompt=prompt)),
        )

    def ask_seed(self, seed: int, prompt: str | None = None) -> Question:
        """Draw the picture of a seed, and of a prompt where the model takes some: who made it?"""
        generation, prompt_taken = self.run.recipe.generation, (prompt or "") if self.takes_prompts else None

        def work() -> str:
            prompts = None if prompt_taken is None else [prompt_taken]
            drawn = sample(self.model, [seed], generation.steps, prompts=prompts, guidance=generation.guidance)
            return self._answer(keep(self.run, to_pixels(drawn.pictures).numpy()[0], seed, prompt_taken))

        return self.questions.ask(f"seed {seed} {prompt_taken or ''}", f"the picture of seed {seed}", work)

    def _answer(self, picture: Images) -> str:
        """Have all methods that can score a picture; gives its id. The oldest picture makes room for it."""
        for method in self.methods.values():
            self._prepare(ASKED, picture, method)
        id_, asked = str(picture.ids[0]), self.sets[ASKED]
        asked.add(picture)
        left = remove_oldest(self.run, but=id_)
        for entry in [one for one in asked.entries if one.id not in left]:
            asked.remove(entry)
            self.scorer.forget(entry.images)
            self.questions.forget(entry.id)
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
    """Open a run, to be scored as its last attribution was, or as its recipe says, but for the settings `typed`."""
    model, last = run.model().to(device), last_attribution(run)
    sets = _sets(run, None if last is None else last.queries)
    first = next((one.parts[0].images for one in sets.values() if one.parts), run.train_images.select([0]))

    def prepared(names: str | None, settings: Settings) -> tuple[Task, list[Method]]:
        changed = replace(settings, **(typed or {}))
        chosen = split_methods(methods or names, changed.objective)
        return prepare_run(run, model, first, chosen, changed, cache, engine)

    as_recipe = run.recipe.attribution.method, settings_of(run)
    try:
        task, chosen = prepared(*as_recipe) if last is None else prepared(",".join(last.methods), last.settings)
    except UsageError as error:  # what the last attribution had may have gone since
        if last is None:
            raise
        say(f"Scored as the recipe says, not as in the last attribution: {error}")
        task, chosen = prepared(*as_recipe)
    return Exploration(
        run=run,
        model=model,
        train=Catalog("training images", run.train_images),
        sets=sets,
        methods={method.name: method for method in chosen},
        scorer=Scorer(task),
        questions=Questions(),
        damping=str(task.settings.damping),
        recipe_damping=str(run.recipe.attribution.damping),
    )


def _sets(run: Run, attributed: str | None) -> dict[str, Catalog]:
    """The pictures that can be asked about: what there is of them."""
    validation, sources = run.recipe.data.validation, {}
    if (run.folder / GENERATED).exists():
        sources[GENERATED] = "generated pictures", str(run.folder / GENERATED)
    if validation is not None:
        sources["validation"] = "validation images", validation
    if attributed is not None and attributed not in (GENERATED, validation):
        sources["attributed"] = "pictures attributed last", run.located(attributed)
    sets = {}
    for name, (title, source) in sources.items():
        select = run.recipe.data.select_validation if source == validation else None
        try:
            images = run.query_images(source, select)
        except UsageError as error:  # they may have gone since
            say(f"Left out: {title}: {error}")
            continue
        shown = images.select(range(min(VALIDATION, len(images)))) if source == validation else images
        sets[name] = Catalog(title, shown)
    return sets | {ASKED: Catalog("pictures asked about here", *kept(run))}
