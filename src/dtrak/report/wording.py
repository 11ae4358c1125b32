"""How pages say it: numbers, durations, the columns of an image, and names in their order."""

from collections.abc import Iterable, Mapping
from typing import Any

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
LONGEST = 300  # letters of what is known of an image


def number(value: float) -> str:
    """Three digits with a sign: +0.123, −1.23×10⁻⁵."""
    return ("" if value < 0 else "+") + plain(value)


def plain(value: float) -> str:
    """Three digits: 0.123, −1.23×10⁻⁵."""
    digits, _, exponent = f"{value:#.3g}".partition("e")
    power = "×10" + str(int(exponent)).translate(SUPERSCRIPTS) if exponent else ""
    return digits.rstrip(".").replace("-", "−") + power


def tenths(value: float) -> str:
    """One digit after the point: 12.3, −0.5."""
    return f"{value:.1f}".replace("-", "−")


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def described(columns: Mapping[str, Any]) -> str:
    """label 3, artist Klee, …"""
    text = ", ".join(f"{name} {value}" for name, value in columns.items() if value not in (None, ""))
    return text if len(text) <= LONGEST else text[: LONGEST - 1].rstrip() + "…"


def in_order(names: Iterable[str]) -> list[str]:
    """Each once, numbers by their size and before words."""
    return sorted(set(names), key=lambda name: (0, len(name), name) if name.isdigit() else (1, 0, name))
