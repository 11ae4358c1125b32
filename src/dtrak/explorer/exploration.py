"""What the explorer knows of a run: its images, the pictures that can be asked about, and who answers."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from dtrak.damping import Damping
from dtrak.data import Images
from dtrak.errors import UsageError
from dtrak.evidence import Resources
from dtrak.explorer.asked import keep, kept, name_of
from dtrak.explorer.catalog import Catalog, Entry
from dtrak.explorer.questions import Question, Questions
from dtrak.explorer.scoring import Fixed, Live, Scored, Scorer, finds_auto_for_nothing
from dtrak.featurizing import FeatureSettings
from dtrak.methods import Method
from dtrak.methods.method import Values
from dtrak.models import DiffusionModel
from dtrak.pipeline import gather_run
from dtrak.progress import say
from dtrak.runs import Run
from dtrak.sampling import sample, to_pixels

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

    def scored(self, set_name: str, method: Method) -> list[tuple[Images, Scored]]:
        """The scores of all pictures of a set that the method can answer about; the work begins if it has not."""
        found = [(part, self.scorer.scored(part, method)) for part in [*self.sets[set_name].parts]]
        if any(scored is None for _, scored in found):
            raise NotReadyError(self.prepare(set_name, method))
        answers = [(part, scored) for part, scored in found if isinstance(scored, Live | Fixed)]
        refusals = [scored for _, scored in found if isinstance(scored, UsageError)]
        if refusals and not answers:
            raise refusals[0]
        return answers

    def scores_of(self, set_name: str, entry: Entry, method: Method, damping: Damping) -> Values:
        """Of one picture, [N]."""
        scored = self.scorer.scored(entry.images, method)
        if scored is None:
            raise NotReadyError(self.prepare(set_name, method))
        if isinstance(scored, UsageError):
            raise scored
        return np.asarray(scored.scores(damping, slice(entry.position, entry.position + 1))[0])

    def prepare(self, set_name: str, method: Method) -> Question:
        """Have the scores of a set of pictures made ready."""
        parts = self.sets[set_name].parts[:]

        def work() -> None:
            for part in parts:
                self.scorer.prepare(part, method)

        key = f"prepare {set_name} {len(parts)} {method.name}"
        return self.questions.ask(key, f"{method.name}, {self.sets[set_name].title}", work, is_bounded=False)

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
        generation, told = self.run.recipe.generation, (prompt or "") if self.takes_prompts else None

        def work() -> str:
            prompts = None if told is None else [told]
            drawn = sample(self.model, [seed], generation.steps, prompts=prompts, guidance=generation.guidance)
            return self._answer(keep(self.run, to_pixels(drawn.pictures).numpy()[0], seed, told))

        return self.questions.ask(f"seed {seed} {told or ''}", f"the picture of seed {seed}", work)

    def _answer(self, picture: Images) -> str:
        """Have all methods that can score a picture; gives its id."""
        for method in self.methods.values():
            self.scorer.prepare(picture, method)
        self.sets[ASKED].add(picture)
        return str(picture.ids[0])


def explore(run: Run, changes: Mapping[str, Any], device: str) -> Exploration:
    """Open a run, to be scored as its last attribution was, or as its recipe says, but for the `changes`."""
    model = run.model().to(device)
    last = _last_attribution(run)
    sets = _sets(run, last.pop("queries", None))
    settings = last | dict(changes)
    first = next((one.parts[0] for one in sets.values() if one.parts), run.train_images.select([0]))
    try:
        evidence = gather_run(run, model, first, settings)
    except UsageError as error:  # what the last attribution had may have gone since
        if not last:
            raise
        say(f"Scored as the recipe says, not as in the last attribution: {error}")
        settings = dict(changes)
        evidence = gather_run(run, model, first, settings)
    if finds_auto_for_nothing(evidence.methods, evidence.objective):
        evidence = replace(evidence, with_partners=True)
    recipe_damping = str(run.recipe.attribution.damping)
    return Exploration(
        run=run,
        model=model,
        train=Catalog("training images", run.train_images),
        sets=sets,
        methods={method.name: method for method in evidence.methods},
        scorer=Scorer(evidence),
        questions=Questions(),
        damping=str(settings.get("damping", recipe_damping)),
        recipe_damping=recipe_damping,
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


def _last_attribution(run: Run) -> dict[str, Any]:
    """How the run's images were scored last, if they were, and the queries then."""
    kept = run.last_attribution()
    if kept is None:
        return {}
    found = {name: kept[name] for name in {"objective", "damping", "queries"} & kept.keys()}
    try:
        for name in {"checkpoints", "retrained", "latents"} & kept.keys():
            kept[name] = run.located(kept[name])
        for kind in (FeatureSettings, Resources):
            own = {one.name: kept[one.name] for one in fields(kind) if one.name in kept}
            valid = TypeAdapter(kind).validate_python(own)
            found |= {name: getattr(valid, name) for name in own}
    except (TypeError, ValueError, UsageError):  # a field of another type
        return {}
    return found | {"method": ",".join(kept["method"])}
