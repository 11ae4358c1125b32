"""The prompts of images.

The prompt of an image is that in its column `prompt`; else the model's template, such as "a {label} painting", filled
in from its columns; else its caption; else the empty prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from string import Formatter

import torch

from dtrak.errors import UsageError
from dtrak.images.images import Images
from dtrak.models.conditions import Condition
from dtrak.models.text_encoders import TextEncoder
from dtrak.progress import say

PROMPT = "prompt"  # the column of images that have their own prompts
CAPTIONS = ("caption", "text")  # columns that describe an image in words
ALIASES = {"class": "label"}
CLASSES = {"label"}  # columns whose values are names of folders, with _ for blanks: ukiyo_e


@dataclass(frozen=True, eq=False)
class Prompts:
    """The conditioner of models that take prompts: a text encoder, and the template for the prompts of images."""

    encoder: TextEncoder
    template: str | None = None

    @property
    def fingerprint(self) -> str:
        return self.encoder.fingerprint

    def check(self, images: Images) -> None:
        """Refuse a template that cannot be filled in from the images' columns."""
        if self.template is not None:
            check_columns(self.template, images, "the prompt")

    def texts(self, images: Images) -> list[str]:
        """Return the prompt of each image; print what was used for images without their own prompt."""
        found = prompts_of(images, self.template)
        filled = sum(own is None and bool(prompt) for own, prompt in zip(_column(images, PROMPT), found, strict=True))
        if filled:
            how = "their captions" if self.template is None else f"“{self.template}” filled in"
            say(f"Prompts of {filled:,} images of {images.source}: {how}")
        missing = [str(id_) for id_, prompt in zip(images.ids, found, strict=True) if not prompt]
        if missing:
            which = "all images" if len(missing) == len(images) else ", ".join(missing[:3]) + ", …" * (len(missing) > 3)
            say(f"No prompt for {which} of {images.source}: the empty prompt is used")
        return found

    def encode(self, texts: Sequence[str]) -> Condition:
        return self.encoder(texts)

    def without(self) -> Condition:
        """Return the condition of an empty prompt, or what the pipeline uses in its place."""
        own = getattr(self.encoder, "without", None)
        return self.encoder([""]) if own is None else own()

    def to(self, device: str | torch.device) -> None:
        self.encoder.to(device)

    def release(self) -> None:
        if hasattr(self.encoder, "release"):
            self.encoder.release()


def prompts_of(images: Images, template: str | None) -> list[str]:
    """Return the prompt of each image, empty if it has none."""
    if template is None:
        captions = next((_column(images, name) for name in CAPTIONS if name in images.columns), [None] * len(images))
        others = [caption or "" for caption in captions]
    else:
        others = _filled(images, template)
    own = _column(images, PROMPT)
    return [other if prompt is None else prompt for prompt, other in zip(own, others, strict=True)]


def fields_of(template: str) -> list[str]:
    """Return the columns that a template names."""
    return [name for _, name in _parts(template) if name is not None]


def check_columns(template: str, images: Images, what: str) -> None:
    """Refuse a template with a column that the images lack, unless each image has its own prompt.

    An error calls the template `what`.
    """
    lacking = [name for name in fields_of(template) if name not in images.columns]
    if lacking and None in _column(images, PROMPT):
        raise UsageError(
            f"{what} {template!r} names the column {lacking[0]!r}, but the images of {images.source} have "
            f"{', '.join(images.columns) or 'none'}"
        )


def _parts(template: str) -> list[tuple[str, str | None]]:
    """Divide a template into texts, each with the column that follows it; refuse all else that Python's format allows.

    Widths could take all memory, and attributes could print internals of Python.
    """
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise UsageError(f"the prompt {template!r} is not a template: {error}") from None
    for _, name, width, conversion in parts:
        if name is not None and (not name or width or conversion):
            raise UsageError(
                f"the prompt {template!r} is not a template: between braces there must be a column's name and nothing "
                "else, as in 'a {label} painting'"
            )
    return [(text, None if name is None else ALIASES.get(name, name)) for text, name, _, _ in parts]


def _filled(images: Images, template: str) -> list[str]:
    """Fill in the template for each image; the result is empty if the image lacks a value that the template names."""
    parts = _parts(template)
    columns = {name: _column(images, name) for _, name in parts if name is not None}
    filled = []
    for row in range(len(images)):
        values = {name: column[row] or "" for name, column in columns.items()}
        values |= {name: values[name].replace("_", " ") for name in CLASSES & values.keys()}
        prompt = "".join(text + (values[name] if name is not None else "") for text, name in parts)
        filled.append(prompt if all(values.values()) else "")
    return filled


def _column(images: Images, name: str) -> list[str | None]:
    """Return a column as text; None where an image has no value."""
    values = images.columns.get(name)
    return [None] * len(images) if values is None else [None if one is None else str(one) for one in values.tolist()]
