"""Find objects by name: those of this package, those that Python code adds, and those that other packages offer.

Those of this package are written as texts, "module:attribute", and loaded when they are first used. Another package
offers one by an entry point in the group `dtrak.KIND`, such as `dtrak.methods`. Entry points are read, in every process
that needs them, when a name is looked up that is not known yet, or when all names are listed.
"""

from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from dtrak.errors import UsageError

Registered = TypeVar("Registered")


class Registry(Mapping[str, Registered], Generic[Registered]):
    """A mapping from names to entries, to which more can be added; errors call an entry a `kind`."""

    def __init__(self, kind: str, group: str, entries: Mapping[str, str | Registered]) -> None:
        self.kind = kind
        self.group = group  # of the entry points
        self._known: dict[str, EntryPoint | Registered] = {
            name: EntryPoint(name, entry, group) if isinstance(entry, str) else entry for name, entry in entries.items()
        }
        self._has_read_entry_points = False

    def __getitem__(self, name: str) -> Registered:
        if name not in self._known:
            self._read_entry_points()
        entry = self._known[name]
        if isinstance(entry, EntryPoint):
            entry = self._known[name] = entry.load()
        return entry

    def __iter__(self) -> Iterator[str]:
        self._read_entry_points()
        return iter(self._known)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _read_entry_points(self) -> None:
        """Load what other packages offer, which cannot replace what is known; what cannot be loaded is left out."""
        if self._has_read_entry_points:
            return
        self._has_read_entry_points = True
        for point in entry_points(group=self.group):
            if point.name not in self._known:
                try:
                    self._known[point.name] = point.load()
                except Exception as error:  # the code of others may raise anything
                    from dtrak.progress import say  # slow to load, and hardly ever needed

                    reason = f"{type(error).__name__}: {error}"
                    say(f"Left out: the {self.kind} {point.name}, as {point.value} cannot be loaded ({reason})")

    def choose(self, name: str) -> Registered:
        """Return the entry of this name; refuse an unknown name, and list the known ones."""
        if name not in self:
            raise UsageError(f"unknown {self.kind} {name!r}: choose from {', '.join(self)}")
        return self[name]

    def add(self, name: str, entry: Registered) -> str:
        """Add an entry under a name, and return the name; two different entries cannot have the same name."""
        if name not in self:
            self._known[name] = entry
        elif self[name] != entry:
            raise UsageError(f"there is another {self.kind} called {name!r} already: give yours another name")
        return name
