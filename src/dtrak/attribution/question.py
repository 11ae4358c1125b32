"""A question is one value: model, training images, queries, methods and settings. Everything that an answer depends on
is in it, and nothing else.

What was given is kept as plain data, so that the same can be asked again: beside features, in a run of a model from
elsewhere, in an index, and in every file of scores. Its facts are kept beside it (`depends.py`).
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dtrak.attribution.settings import Settings
from dtrak.checks import first_mistake
from dtrak.errors import DtrakError, UsageError
from dtrak.files import full_name, write_json
from dtrak.fingerprints import Facts, first_random, hash_of
from dtrak.images.images import ImageSource
from dtrak.images.selection import Selection
from dtrak.images.sources import full_source
from dtrak.methods import METHODS, Method
from dtrak.models.model_source import ModelSource

QUESTIONS = "questions"  # a folder beside features
FROM_PYTHON = "given from Python: "  # begins what is kept of an object


@dataclass(frozen=True, eq=False)
class Question:
    """Which training images made these queries? `queries` is None where they come later, as in an index."""

    model: ModelSource
    train: ImageSource
    queries: ImageSource | None
    methods: tuple[Method, ...]
    settings: Settings

    def with_queries(self, queries: ImageSource) -> "Question":
        return replace(self, queries=queries)

    @property
    def given(self) -> dict[str, Any]:
        """Return what was given as plain data: names valid in any working folder, and objects by their classes."""
        return {
            "model": {
                "source": _named(self.model.source, full_name),
                "loras": [[full_name(lora), strength] for lora, strength in self.model.loras],
                "prompt": self.model.prompt,
                "precision": self.model.precision,
            },
            "train": images_given(self.train),
            "queries": None if self.queries is None else images_given(self.queries),
            "methods": [one.name if METHODS.get(one.name) == one else FROM_PYTHON + one.name for one in self.methods],
            "settings": self.settings.plain(),
        }

    @classmethod
    def of_given(cls, given: Mapping[str, Any], where: str) -> "Question":
        """Return the question of which this is what was given; `where` begins the message of an error."""
        objects = [f"{name} was" for name in ("model", "train") if FROM_PYTHON in str(given[name]["source"])]
        objects += [f"the method {one.removeprefix(FROM_PYTHON)} was" for one in given["methods"] if FROM_PYTHON in one]
        objects += [f"{name} was" for name, value in given["settings"].items() if FROM_PYTHON in str(value)]
        if objects:
            raise UsageError(f"{where}: {objects[0]} given from Python as an object: ask from Python again")
        try:
            model, queries = given["model"], given["queries"]
            loras = tuple((str(lora), float(strength)) for lora, strength in model["loras"])
            return cls(
                ModelSource(model["source"], loras, model["prompt"], model["precision"]),
                _source_of(given["train"]),
                None if queries is None else _source_of(queries),
                tuple(METHODS.choose(name) for name in given["methods"]),
                TypeAdapter(Settings).validate_python(given["settings"]),
            )
        except ValidationError as error:
            raise DtrakError(f"{where} does not say what was asked: {first_mistake(error)}") from None

    def asked(self, facts: Facts) -> dict[str, Any]:
        """Return what files keep: what was given, and the facts that it was answered from."""
        return {"dtrak": version("dtrak"), "given": self.given, "facts": facts}

    def keep(self, cache: Path, facts: Facts) -> None:
        """Write it beside features; an object that would be another one in every process cannot be kept."""
        if (random := first_random(facts)) is not None:
            said = "it cannot be hashed, so that nobody could tell whether features are still its own"
            raise UsageError(f"cache {cache}: {random}: {said}; leave the cache out")
        self.save(cache / QUESTIONS / f"{hash_of(facts)}.json", facts)

    def save(self, path: Path, facts: Facts) -> None:
        write_json(path, self.asked(facts))

    @classmethod
    def load(cls, path: Path) -> "tuple[Question, Facts]":
        """Read what `save` wrote: the question, and the facts then."""
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            return cls.of_given(kept["given"], str(path)), kept["facts"]
        except FileNotFoundError:
            raise UsageError(f"there is no {path}, which says what was asked") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DtrakError(f"{path} does not say what was asked: {error}") from None


def _named(source: Any, full: Callable[[str], str]) -> str:
    return full(source) if isinstance(source, str) else f"{FROM_PYTHON}{type(source).__name__}"


def _source_of(given: Mapping[str, Any]) -> ImageSource:
    select = None if given["select"] is None else Selection.model_validate(given["select"])
    return ImageSource(given["source"], select, given["subset"], given["crop"], given["size"], given["channels"])


def images_given(given: ImageSource) -> dict[str, Any]:
    """Return a source of images as plain data."""
    return {
        "source": _named(given.source, full_source),
        "select": None if given.select is None else given.select.model_dump(mode="json"),
        "subset": given.subset,
        "crop": given.crop,
        "size": given.size,
        "channels": given.channels,
    }


def kept_question(cache: Path, methods: str | None) -> Question:
    """Return the question that features in a folder were made for; of several, the latest with these `methods`."""
    found = [Question.load(path)[0] for path in sorted((cache / QUESTIONS).glob("*.json"), key=os.path.getmtime)]
    names = set() if methods is None else set(methods.split(","))
    if not found:
        raise UsageError(
            f"{cache} does not say which model and images its features are of: `dtrak attribute --model … --train … "
            f"--cache {cache}` makes features that do"
        )
    fitting = [one for one in found if names <= {method.name for method in one.methods}]
    return (fitting or found)[-1]
