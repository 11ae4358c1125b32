"""Find objects by name: those of this package, those that Python code adds, and those that other packages offer.

Another package offers one by an entry point in the group `dtrak.KIND`, such as `dtrak.methods`. Entry points are read
when a name is looked up that is not known yet, or when all names are listed, in every process that needs them.
"""

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from dtrak.errors import UsageError

Registered = TypeVar("Registered")


class Registry(Mapping[str, Registered], Generic[Registered]):
    """A mapping from names to entries, to which more can be added; errors call an entry a `kind`."""

    def __init__(self, kind: str, group: str, entries: Mapping[str, Registered]) -> None:
        self.kind = kind
        self.group = group  # of the entry points
        self._known = dict(entries)
        self._added: set[str] = set()
        self._has_read_entry_points = False

    def add(self, name: str, entry: Registered) -> str:
        """Add an entry under a name, and return the name; two different entries cannot have the same name."""
        if self._known.get(name, entry) != entry:
            raise UsageError(f"there is another {self.kind} called {name!r} already: give yours another name")
        if name not in self._known:
            self._known[name] = entry
            self._added.add(name)
        return name

    def added(self, names: Iterable[str]) -> dict[str, Registered]:
        """Return those of the named entries that Python code added. Other processes do not know them."""
        return {name: self._known[name] for name in names if name in self._added}

    def learn(self, entries: Mapping[str, Registered]) -> None:
        """Add the entries that another process sent, unless their names are known already."""
        for name, entry in entries.items():
            if name not in self:
                self.add(name, entry)

    def __getitem__(self, name: str) -> Registered:
        return self._known[name] if name in self._known else self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def choose(self, name: str) -> Registered:
        """Return the entry of this name; refuse an unknown name, and list the known ones."""
        if name not in self:
            raise UsageError(f"unknown {self.kind} {name!r}: choose from {', '.join(self)}")
        return self[name]

    @property
    def _all(self) -> dict[str, Registered]:
        """All entries, with those of other packages, which cannot replace one of this package."""
        if not self._has_read_entry_points:
            self._has_read_entry_points = True
            for point in entry_points(group=self.group):
                self._known.setdefault(point.name, point.load())
        return self._known
