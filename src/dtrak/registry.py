"""Things by name: those of this package, those that Python code adds, and those that other packages offer.

Another package offers one by an entry point in the group `dtrak.KIND`, such as `dtrak.methods`. Entry points are read
when a name is looked up that is not known yet, or when all names are listed, in every process that needs them.
"""

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from dtrak.errors import UsageError

Thing = TypeVar("Thing")


class Registry(Mapping[str, Thing], Generic[Thing]):
    """A mapping from names to things that can be added to; `kind` is what an error calls one of them."""

    def __init__(self, kind: str, group: str, own: Mapping[str, Thing]) -> None:
        self.kind = kind
        self.group = group  # of the entry points
        self._known = dict(own)
        self._has_asked_others = False

    def add(self, name: str, thing: Thing) -> str:
        """Make a thing known by a name, and give the name back; two different things cannot share one."""
        if self._known.get(name, thing) != thing:
            raise UsageError(f"there is another {self.kind} called {name!r} already: give yours another name")
        self._known[name] = thing
        return name

    def __getitem__(self, name: str) -> Thing:
        return self._known[name] if name in self._known else self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def choose(self, name: str) -> Thing:
        """The thing of this name; refuses an unknown name, and lists the known ones."""
        if name not in self:
            raise UsageError(f"unknown {self.kind} {name!r}: choose from {', '.join(self)}")
        return self[name]

    @property
    def _all(self) -> dict[str, Thing]:
        """Everything, with what other packages offer; a name of this package stays its own."""
        if not self._has_asked_others:
            self._has_asked_others = True
            for point in entry_points(group=self.group):
                self._known.setdefault(point.name, point.load())
        return self._known
