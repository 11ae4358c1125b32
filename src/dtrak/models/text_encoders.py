"""Text encoders turn prompts into conditions. Stable Diffusion 1 and 2 have one CLIP; others have several encoders."""

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, eq=False)
class ClipText:
    """Encode texts as the last hidden states of a CLIP, {"encoder_hidden_states": [B, tokens, width]}."""

    tokenizer: Any  # transformers' CLIPTokenizer
    network: nn.Module  # transformers' CLIPTextModel

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> Condition:
        parts = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            tokens = self.tokenizer(
                list(texts[start : start + TEXTS_AT_ONCE]),
                padding="max_length",
                max_length=self.tokenizer.model_max_length,
                truncation=True,
                return_tensors="pt",
            )
            device = next(self.network.parameters()).device
            parts.append(self.network(tokens.input_ids.to(device))[0])
        return {"encoder_hidden_states": torch.cat(parts)}

    @cached_property
    def fingerprint(self) -> str:
        tokenizer = self.tokenizer
        parts = [
            sorted(tokenizer.get_vocab().items()),
            tokenizer.special_tokens_map,
            tokenizer.model_max_length,
            tokenizer.padding_side,
        ]
        return digest_of(self.network, repr(parts).encode())

    def to(self, device: str | torch.device) -> None:
        self.network.to(device)
