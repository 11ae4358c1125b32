"""Facts: trees of plain values that say what a thing depends on, their fingerprints, and the first difference of two.

A fact is text, a number, true, false, nothing, or a list or mapping of facts. Weights, arrays, functions and objects
enter as the text of a hash of their content now. Of what is in memory nothing is kept from one reading to the next: a
tensor can change without a trace (`.data`), and 5 gigabytes are hashed in a second.
"""

import json
import pickle
import sys
from collections.abc import Mapping
from functools import cache
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
    from torch import Tensor, nn  # facts are compared without torch

Facts = Mapping[str, Any]

RANDOM = "random "  # begins the fact of an object that cannot be hashed
# Packages whose files are not hashed: they have versions, which answers do not depend on.
LIBRARIES = {"dtrak", "torch", "diffusers", "transformers", "peft", "numpy", "scipy", "datasets", "dill"}
# Attributes of modules and configurations that do not change what is computed, and private ones that do.
WITHOUT_EFFECT = {"training", "gradient_checkpointing", "peft_config", "kwargs", "name_or_path", "warnings_issued"}
WITHOUT_EFFECT |= {"architectures", "transformers_version", "dtype"}
PLAIN = (int, float, str, list, tuple, dict)
PRIVATE = {"_internal_dict", "_active_adapter", "_disable_adapters"}
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


def of_file(path: Path) -> str:
    """Hash a file; its content is read again in this process only if its size, times or inode have changed."""
    found = path.stat()
    return _of_content(path, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


@cache
def _of_content(path: Path, *found: int) -> str:
    digest = xxh3_128()
    with path.open("rb") as file:
        while content := file.read(1 << 24):
            digest.update(content)
    return digest.hexdigest()


def of_network(network: "nn.Module") -> Facts:
    """Return what a network computes with: weights, attributes of its modules, and the code of classes of one's own.

    Attributes are numbers, texts, tensors, and lists, mappings and objects of these: the scaling of a LoRA, the stride
    of a layer, a configuration.
    """
    from torch import nn

    usual, attributes, code = vars(nn.Module()).keys() | WITHOUT_EFFECT, {}, {}
    for name, module in network.named_modules():
        kind, own = type(module), _is_own(type(module))
        attributes[name] = {
            key: _plain(value)
            for key, value in vars(module).items()
            if key not in usual and (own or key in PRIVATE or not key.startswith("_"))
        } | {"class": kind.__qualname__}
        if own and kind.__qualname__ not in code:
            code[kind.__qualname__] = of_object(kind)
    weights = of_tensors({**dict(network.named_parameters()), **dict(network.named_buffers())})
    settings = {"class": type(network).__name__, "attributes": hash_of(attributes), "code": code}
    return {"weights": weights, "network": settings}


def _plain(value: Any) -> Any:
    """Return an attribute as facts."""
    import torch

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        return of_tensors({"": value})
    if isinstance(value, np.ndarray):
        return of_array(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, Mapping):
        named = {str(key): one for key, one in value.items() if key not in WITHOUT_EFFECT}
        return {key: _plain(one) for key, one in named.items() if not key.startswith("_")}
    if _is_own(type(value)):
        return of_object(value)
    # An object of a library, such as a configuration; what it holds of other objects may lead in a circle.
    own = vars(value).items() if hasattr(value, "__dict__") else ()
    return [type(value).__qualname__, _plain({key: one for key, one in own if isinstance(one, PLAIN)})]


def _is_own(kind: type) -> bool:
    """Tell whether a class is neither of this package nor of a library; functions are of Python, and count as own."""
    return kind.__module__.partition(".")[0] not in LIBRARIES


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
    for package in sorted(word for word in words - LIBRARIES - sys.stdlib_module_names if word.isidentifier()):
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
