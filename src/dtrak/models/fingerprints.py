"""Fingerprints: 16 hexadecimal digits that change with any weight, layer or setting of a network."""

import hashlib
import json
from collections.abc import MutableMapping

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

_frozen: MutableMapping[Tensor, tuple[int, bytes]] = WeakIdKeyDictionary()  # version and hash of frozen parameters


def digest_of(network: nn.Module, *more: bytes) -> str:
    """Return the fingerprint of a network and of `more` bytes."""
    digest = hashlib.blake2b(digest_size=8)
    config = getattr(network, "config", {})
    settings = config.to_dict() if hasattr(config, "to_dict") else dict(config)
    settings = {key: value for key, value in settings.items() if key[0] != "_"}
    digest.update(repr(network).encode())
    digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
    for part in more:
        digest.update(part)
    for name, module in network.named_modules():
        if isinstance(scaling := getattr(module, "scaling", None), dict):  # α/r of a LoRA is not a weight
            digest.update(repr((name, sorted(scaling.items()), getattr(module, "active_adapters", None))).encode())
    for name, value in network.state_dict(keep_vars=True).items():
        digest.update(name.encode())
        digest.update(_known_hash(value))
    return digest.hexdigest()


def _known_hash(value: Tensor) -> bytes:
    """Return the hash of a tensor; for frozen parameters, which may be gigabytes, it is computed only once."""
    if value.requires_grad or not isinstance(value, nn.Parameter):
        return _hash(value)
    version, known = _frozen.get(value, (-1, b""))
    if version != value._version:
        known = _hash(value)
        _frozen[value] = value._version, known
    return known


def _hash(value: Tensor) -> bytes:
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(content.data, digest_size=16).digest()
