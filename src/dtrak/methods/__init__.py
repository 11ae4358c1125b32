"""The attribution methods by name. Each is a few lines over shared parts and sees arrays, never models.

Adding one is a function in a file of its family and a line in `METHODS`.
"""

from dtrak.errors import choose
from dtrak.methods.kernel import D_TRAK, TRAK
from dtrak.methods.method import Method

METHODS: dict[str, Method] = {method.name: method for method in (TRAK, D_TRAK)}


def get_method(name: str) -> Method:
    choose("method", name, list(METHODS))
    return METHODS[name]


def split_methods(names: str) -> list[str]:
    """`trak,d-trak` → its names, each of a known method."""
    return [get_method(name.strip()).name for name in names.split(",")]


__all__ = ["METHODS", "Method", "get_method", "split_methods"]
