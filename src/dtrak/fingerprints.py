"""Facts: trees of plain values that say what a thing depends on, their fingerprints, and the first difference of two.

A fact is text, a number, true, false, nothing, or a list or mapping of facts. Weights, arrays, functions and objects
enter as the text of a hash of their content now. Nothing is kept from one reading to the next: a tensor can change
without a trace (`.data`), and 5 gigabytes are hashed in a second.
"""

import json
import pickle
import sys
from collections.abc import Mapping
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from pickletools import genops
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

if TYPE_CHECKING:
    from torch import Tensor  # facts are compared without torch

Facts = Mapping[str, Any]

RANDOM = "random "  # begins the fact of an object that cannot be hashed
NOT_HASHED = sys.stdlib_module_names | {"dtrak", "__main__"}  # these have versions, or are pickled as they are
_random: dict[int, tuple[object, str]] = {}  # such objects by their id, kept so that no other object gets the id


def hash_of(facts: Any) -> str:
    """Return the fingerprint of facts, 16 hexadecimal digits; the order of a mapping does not count."""
    return blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=8).hexdigest()


def of_array(values: NDArray[Any]) -> str:
    """Hash an array's type, shape and values; of texts, how many characters the type has room for does not count."""
    if values.dtype.kind in "OU":  # a cell may hold a date or an array
        texts = json.dumps(values.tolist(), default=lambda value: xxh3_128(pickle.dumps(value)).hexdigest())
        return xxh3_128(texts.encode()).hexdigest()
    digest = xxh3_128(f"{values.dtype.str} {values.shape}".encode())
    digest.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def of_tensors(tensors: Mapping[str, "Tensor"]) -> str:
    """Hash the names, types, shapes and bytes of tensors on any device; their order does not count."""
    import torch

    digest = xxh3_128()
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {list(value.shape)} ".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def of_object(value: object) -> str:
    """Hash a function or an object: code, closure, defaults, attributes, and the globals that it reads.

    A function of an importable module is pickled as its name alone, so that the .py files of all packages that the
    pickle names are hashed too. What cannot be pickled gets a random fact, the same for as long as this process lives.
    """
    from datasets.utils._dill import dumps

    try:
        content = dumps(value)
    except Exception:  # generators and handles of devices raise errors of many kinds
        return _random.setdefault(id(value), (value, f"{RANDOM}{uuid4().hex}"))[1]
    digest = xxh3_128(content)
    words = {arg.partition(".")[0] for _, arg, _ in genops(content) if isinstance(arg, str)}
    for package in sorted(word for word in words - NOT_HASHED if word.isidentifier()):
        try:
            spec = find_spec(package)
        except ValueError:  # a module that was made without an import
            continue
        if spec is None or spec.origin is None or not spec.has_location:  # a word of its own, or folders without code
            continue
        folders = spec.submodule_search_locations or ()
        for file in [path for one in folders for path in sorted(Path(one).rglob("*.py"))] or [Path(spec.origin)]:
            digest.update(f"{package} {file.name} ".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def first_random(facts: Any, path: str = "") -> str | None:
    """Return the path of the first object that could not be hashed, such as "model.network.adapter"."""
    if isinstance(facts, str):
        return path if facts.startswith(RANDOM) else None
    found = (first_random(inner, _inside(path, name)) for name, inner in _entries(facts).items())
    return next((one for one in found if one is not None), None)


def first_difference(then: Any, now: Any, path: str = "") -> str | None:
    """Return the path of the first fact that differs, such as "train.columns.artist"; None if all are equal."""
    if hash_of(then) == hash_of(now):
        return None
    before, after = _entries(then), _entries(now)
    if before and after:
        for name in {**before, **after}:
            inner = _inside(path, name)
            if name not in before or name not in after:
                return inner
            if found := first_difference(before[name], after[name], inner):
                return found
    return path


def _entries(facts: Any) -> Mapping[Any, Any]:
    """Return what a fact holds, by its names or its places."""
    if isinstance(facts, Mapping):
        return facts
    return dict(enumerate(facts)) if isinstance(facts, list | tuple) else {}


def _inside(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)
