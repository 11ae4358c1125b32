"""Write numbers, durations and the columns of an image as text for people, and sort names."""

from collections.abc import Iterable, Mapping
from typing import Any

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MAX_LENGTH = 300  # of the text about an image, in characters


def number(value: float) -> str:
    """Write a number with three digits and a sign: +0.123, −1.23×10⁻⁵."""
    return ("" if value < 0 else "+") + plain(value)


def plain(value: float) -> str:
    """Write a number with three digits: 0.123, −1.23×10⁻⁵."""
    digits, _, exponent = f"{value:#.3g}".partition("e")
    power = "×10" + str(int(exponent)).translate(SUPERSCRIPTS) if exponent else ""
    return digits.rstrip(".").replace("-", "−") + power


def tenths(value: float) -> str:
    """Write a number with one digit after the point: 12.3, −0.5."""
    return f"{value:.1f}".replace("-", "−")


def duration(seconds: float) -> str:
    """Write a duration as 1.5 s, 2 min 14 s or 3 h 5 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def roughly(seconds: float) -> str:
    """Write an estimate of a duration: less than a minute, 5 minutes, 3 hours, 2 days."""
    if seconds < 50:
        return "a minute" if seconds > 25 else "half a minute"
    for unit, name in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= 0.95 * unit:
            count = max(1, round(seconds / unit))
            return f"{count:,} {name}{'' if count == 1 else 's'}"
    return "a minute"


def described(columns: Mapping[str, Any]) -> str:
    """Write the columns of an image in a line: label 3, artist Klee, …"""
    text = ", ".join(f"{name} {value}" for name, value in columns.items() if value not in (None, ""))
    return text if len(text) <= MAX_LENGTH else text[: MAX_LENGTH - 1].rstrip() + "…"


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names without duplicates: numbers first, by their size, then words."""
    return sorted(set(names), key=lambda name: (0, len(name), name) if name.isdigit() else (1, 0, name))
