"""Text encoders turn prompts into conditions. A pipeline of diffusers encodes prompts itself, with all its encoders."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import nn

from dtrak.models.conditions import Condition
from dtrak.models.fingerprints import digest_of

TEXTS_AT_ONCE = 64


class TextEncoder(Protocol):
    """All text encoders of a model, called as one."""

    def __call__(self, texts: Sequence[str], /) -> Condition:
        """Return the condition of B texts, each [B, …], without gradients."""

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with anything that changes the conditions."""

    def to(self, device: str | torch.device, /) -> None: ...


class PipelineText:
    """The text encoders and tokenizers of a pipeline of diffusers.

    `load` returns a pipeline that has these parts. Large encoders are loaded when a text is encoded, and again after
    `release`: a T5 takes ten gigabytes or more, and is not needed once the prompts are encoded.
    """

    def __init__(
        self,
        load: Callable[[], Any],
        encode: Callable[[Any, list[str], torch.device], Condition],  # of a family: pipeline, texts, device → condition
        without: Callable[[Any, torch.device], Condition] | None = None,  # for guidance, if not an empty prompt
        large: bool = False,
    ) -> None:
        self._load, self._encode, self._without, self._large = load, encode, without, large
        self._pipeline: Any = None
        self._device = torch.device("cpu")
        if not large:
            _ = self.pipeline  # damaged files are found at once

    @property
    def pipeline(self) -> Any:
        if self._pipeline is None:
            self._pipeline = self._load()
            for network in networks_of(self._pipeline):
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

    @cached_property
    def fingerprint(self) -> str:
        parts = [repr(_tokens_of(tokenizer)).encode() for tokenizer in tokenizers_of(self.pipeline)]
        for network in networks_of(self.pipeline):
            parts.append(digest_of(network).encode())
        first, *others = parts
        return digest_of(nn.Identity(), first, *others, self._encode.__qualname__.encode())

    def to(self, device: str | torch.device) -> None:
        self._device = torch.device(device)
        if self._pipeline is not None:
            for network in networks_of(self._pipeline):
                network.to(self._device)

    def release(self) -> None:
        """Forget large encoders, until a text is encoded again."""
        if self._large and self._pipeline is not None:
            _ = self.fingerprint  # is needed later, and takes the weights
            self._pipeline = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pipeline": None}  # another process loads the encoders itself, if it needs them


def networks_of(pipeline: Any) -> list[nn.Module]:
    """Return the text encoders of a pipeline."""
    return [part for name, part in sorted(pipeline.components.items()) if name.startswith("text_encoder") and part]


def tokenizers_of(pipeline: Any) -> list[Any]:
    """Return the tokenizers of a pipeline."""
    return [part for name, part in sorted(pipeline.components.items()) if name.startswith("tokenizer") and part]


def _tokens_of(tokenizer: Any) -> list[Any]:
    """Return everything in a tokenizer that the tokens of a text depend on."""
    return [
        sorted(tokenizer.get_vocab().items()),
        tokenizer.special_tokens_map,
        tokenizer.model_max_length,
        tokenizer.padding_side,
    ]
