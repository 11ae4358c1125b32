"""Divide the shards of a store among processes that fill it together, each on its own: `--shard 3/64`."""

from dataclasses import dataclass

from dtrak.checks import shortened
from dtrak.errors import UsageError

MOST_SHARES = 10**6


@dataclass(frozen=True)
class Share:
    """One of several equal shares of a store's shards, for one of several processes that fill it."""

    number: int  # from 1 on
    count: int

    @classmethod
    def parse(cls, text: str) -> "Share":
        """Read a text such as 3/64."""
        number, slash, count = text.partition("/")
        if not slash or not (number.isdecimal() and count.isdecimal()) or not 1 <= int(count) <= MOST_SHARES:
            raise UsageError(f"shard {shortened(text)}: give its number and how many there are, such as 3/64")
        if not 1 <= int(number) <= int(count):
            raise UsageError(f"shard {shortened(text)}: its number has to be from 1 to {int(count)}")
        return cls(int(number), int(count))

    def of(self, shards: int) -> range:
        """Return the shards of this share."""
        return range(self.number - 1, shards, self.count)
