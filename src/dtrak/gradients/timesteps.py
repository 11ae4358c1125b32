"""Choose which of the T timesteps are used: evenly spaced ones, the first K, or those of a list."""

from dtrak.errors import UsageError
from dtrak.limits import shortened


def select_timesteps(choice: int | str, total: int, middles: bool = False) -> tuple[int, ...]:
    """Return the chosen timesteps, counted from zero.

    - `10` or `"10"` means K = 10 evenly spaced timesteps, range(0, T, T//K)[:K]. If `middles` is set, it means the same
      as `"middle:10"`.
    - `"middle:10"` means the middles of ten equal intervals.
    - `"cumulative:10"` means the first ten timesteps.
    - `"0,100,200"` means these timesteps. A list of one needs a comma at its end.
    """
    text = choice.strip() if isinstance(choice, str) else shortened(choice)
    too_many = text.count(",") > total  # such a list is refused without reading its numbers
    try:
        if "," in text:
            chosen = [] if too_many else [int(part) for part in text.split(",") if part.strip()]
        elif text.startswith("cumulative:"):
            chosen = list(range(_count(text.removeprefix("cumulative:"), total)))
        elif text.startswith("middle:") or (middles and text.isdecimal()):
            count = _count(text.removeprefix("middle:"), total)
            chosen = [(2 * index + 1) * total // (2 * count) for index in range(count)]
        else:
            count = _count(text, total)
            chosen = list(range(0, total, total // count))[:count]
    except ValueError:
        raise UsageError(
            f"timesteps {shortened(text)}: give a number from 1 to {total}, middle:NUMBER, cumulative:NUMBER, or a "
            "list such as 0,100,200"
        ) from None
    if not chosen or len(set(chosen)) < len(chosen) or min(chosen) < 0 or max(chosen) >= total:
        raise UsageError(f"timesteps {shortened(text)}: a list holds different numbers from 0 to {total - 1}")
    return tuple(chosen)


def _count(text: str, total: int) -> int:
    """Return the number in a text; raise a ValueError if it is not from 1 to `total`."""
    count = int(text)
    if not 1 <= count <= total:
        raise ValueError
    return count
