"""The prompts of images, and the text encoders that turn them into conditions.

The prompt of an image is that in its column `prompt`; else the model's template, such as "a {label} painting", filled
in from its columns; else its caption; else the empty prompt. A pipeline of diffusers encodes prompts itself, with all
its encoders.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any, Protocol

import torch
from torch import nn

from dtrak.errors import UsageError
from dtrak.fingerprints import Facts, hash_of, of_network, of_object
from dtrak.images.images import Images
from dtrak.models.conditions import Condition
from dtrak.progress import say

PROMPT = "prompt"  # the column of images that have their own prompts
CAPTIONS = ("caption", "text")  # columns that describe an image in words
ALIASES = {"class": "label"}
CLASSES = {"label"}  # columns whose values are names of folders, with _ for blanks: ukiyo_e
TEXTS_AT_ONCE = 64


class TextEncoder(Protocol):
    """All text encoders of a model, called as one."""

    def __call__(self, texts: Sequence[str], /) -> Condition:
        """Return the condition of B texts, each [B, …], without gradients."""

    def to(self, device: str | torch.device, /) -> None: ...


class PipelineText:
    """The text encoders and tokenizers of a pipeline of diffusers.

    `load` returns a pipeline that has these parts. Large encoders are loaded when a text is encoded, and again after
    `release`: a T5 takes ten gigabytes or more, and is not needed once the prompts are encoded. So their facts are
    those of their files, which `stored` returns.
    """

    def __init__(
        self,
        load: Callable[[], Any],
        encode: Callable[[Any, list[str], torch.device], Condition],  # of a family: pipeline, texts, device → condition
        without: Callable[[Any, torch.device], Condition] | None = None,  # for guidance, if not an empty prompt
        stored: Callable[[], Facts] | None = None,  # for large encoders
    ) -> None:
        self._load, self._encode, self._without, self._stored = load, encode, without, stored
        self._pipeline: Any = None
        self._device = torch.device("cpu")
        if stored is None:
            _ = self.pipeline  # damaged files are found at once

    @property
    def pipeline(self) -> Any:
        if self._pipeline is None:
            self._pipeline = self._load()
            for network in networks_of(self._pipeline).values():
                network.requires_grad_(False).eval().to(self._device)
        return self._pipeline

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> Condition:
        parts = [
            self._encode(self.pipeline, list(texts[start : start + TEXTS_AT_ONCE]), self._device)
            for start in range(0, len(texts), TEXTS_AT_ONCE)
        ]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    @torch.no_grad()
    def without(self) -> Condition:
        """Return the condition that guidance compares with, each [1, …]."""
        return self([""]) if self._without is None else self._without(self.pipeline, self._device)

    @property
    def facts(self) -> Facts:
        """Weights, tokenizers, and the family's way to encode."""
        if self._stored is not None:
            parts = self._stored()
        else:
            networks = {name: of_network(one) for name, one in networks_of(self.pipeline).items()}
            parts = networks | _tokenizers_of(self.pipeline)
        return {**parts, "encode": self._encode.__qualname__}

    def to(self, device: str | torch.device) -> None:
        self._device = torch.device(device)
        if self._pipeline is not None:
            for network in networks_of(self._pipeline).values():
                network.to(self._device)

    def release(self) -> None:
        """Forget large encoders, until a text is encoded again."""
        if self._stored is not None:
            self._pipeline = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pipeline": None}  # another process loads the encoders itself, if it needs them


def networks_of(pipeline: Any) -> dict[str, nn.Module]:
    """Return the text encoders of a pipeline, by name."""
    return {name: one for name, one in sorted(pipeline.components.items()) if name.startswith("text_encoder") and one}


def _tokenizers_of(pipeline: Any) -> dict[str, Facts]:
    """Return everything in the tokenizers of a pipeline that the tokens of a text depend on."""
    found = {name: one for name, one in pipeline.components.items() if name.startswith("tokenizer") and one}
    return {
        name: {
            "class": type(one).__name__,
            "vocabulary": hash_of(one.get_vocab()),
            "special tokens": {key: str(value) for key, value in one.special_tokens_map.items()},
            "length": one.model_max_length,
            "padding side": one.padding_side,
        }
        for name, one in found.items()
    }


@dataclass(frozen=True, eq=False)
class Prompts:
    """The conditioner of models that take prompts: a text encoder, and the template for the prompts of images."""

    encoder: TextEncoder
    template: str | None = None

    @property
    def facts(self) -> Facts:
        own = self.encoder.facts if isinstance(self.encoder, PipelineText) else {"object": of_object(self.encoder)}
        return {"encoder": own, "template": self.template}

    @property
    def reads(self) -> list[str]:
        return [PROMPT, *(CAPTIONS if self.template is None else fields_of(self.template))]

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
        return self.encoder.without() if isinstance(self.encoder, PipelineText) else self.encoder([""])

    def to(self, device: str | torch.device) -> None:
        self.encoder.to(device)

    def release(self) -> None:
        if isinstance(self.encoder, PipelineText):
            self.encoder.release()


def prompts_of(images: Images, template: str | None) -> list[str]:
    """Return the prompt of each image, empty if it has none.

    One that lacks a value which the template names has none.
    """
    if template is None:
        captions = next((_column(images, name) for name in CAPTIONS if name in images.columns), [None] * len(images))
        others = [caption or "" for caption in captions]
    else:
        parts, others = _parts(template), []
        columns = {name: _column(images, name) for _, name in parts if name is not None}
        for row in range(len(images)):
            values = {name: column[row] or "" for name, column in columns.items()}
            values |= {name: values[name].replace("_", " ") for name in CLASSES & values.keys()}
            prompt = "".join(text + (values[name] if name is not None else "") for text, name in parts)
            others.append(prompt if all(values.values()) else "")
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


def _column(images: Images, name: str) -> list[str | None]:
    """Return a column as text; None where an image has no value."""
    values = images.columns.get(name)
    return [None] * len(images) if values is None else [None if one is None else str(one) for one in values.tolist()]
