"""The law: an answer is that of a new folder with the same content, or a refusal where the table has one."""

import shutil
from contextlib import chdir
from copy import deepcopy
from functools import cache
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import torch

from changes import COSTS, FACTS, change, facts_of, methods_with, new_world, usual, values_of
from doors import DOORS, alike
from in_process import RefusedError, Work
from worlds import MEASURED, State, World

# What an answer need not show.
UNSEEN = ("place", "methods order", "query caption")

# What a door does if something has changed since what it reads was made:
# n    it answers as a new folder would: what was kept is computed anew
# m    it answers as when that was made, for this is no part of what it is asked
# r    it refuses in one line, and changes nothing
# -    it does not depend on this
TABLE = """
                          image order column prompt query model typed rows numbers members drawing package place nothing
python                    n     n     n      n      n     n     n     n    n       n       -       -       n     -
command of a trained run  r     nr    n      nr     n     n     -     n    n       n       -       -       n     -
command of another run    n     n     n      n      n     r     r     n    n       n       -       -       n     -
scores                    r     r     r      r      r     r     m     m    m       r       -       -       nr    -
report                    r     r     r      r      r     r     m     m    m       r       -       -       nr    -
credit                    r     r     r      r      r     r     m     m    m       r       -       -       nr    -
card                      r     r     r      r      r     r     m     m    m       r       -       -       nr    -
explorer                  nr    nr    nr     nr     nr    nr    m     m    m       nr      -       -       nr    -
index                     mr    mr    mr     mr     n     r     m     m    m       -       -       -       nr    -
generate                  -     -     -      nr     -     nr    -     -    -       -       n       -       n     -
new process               n     n     n      n      n     n     -     -    -       -       -       n       n     -
"""


# How the law can be broken.
HOW = {
    "": "answers as it has to",
    "stale": "answers as before",
    "wrong": "answers neither as before nor as a new folder does",
    "refused": "refuses, though it could answer",
    "answered": "answers, though it had to refuse",
    "ignored": "answers as before, and so does a new folder",
    "overwritten": "refuses, but has changed what it refuses to change",
    "computed": "calls networks again for what it knows",
    "trusted": "shows an LDS that is not that of these scores",
    "not trusted": "does not know the LDS of these scores",
}


@cache
def verdict(kind: str, door: str, fact: str) -> str:
    """What the table has for a door and a fact."""
    head, *rows = [line for line in TABLE.splitlines() if line]
    name = door if door != "command" else f"command of {'another' if kind == 'latent' else 'a trained'} run"
    (cells,) = (row[len(name) :].split() for row in rows if row.startswith(f"{name} "))
    return cells[head.split().index(FACTS[fact].touches[kind])]


class Lab:
    """Makes worlds, and knows what is answered in new ones."""

    def __init__(self, root: Path) -> None:
        self.root, self.work, self.numbers = root, Work(), count()
        self.answered: dict[Any, tuple[Any, int]] = {}  # in new worlds
        self.begun: dict[Any, Story] = {}  # stories as they are after their first question

    def ask(self, world: World, door: str) -> tuple[Any, int]:
        """Return the answer or the refusal, and how many rows went through networks."""
        usual_threads = torch.get_num_threads()
        torch.set_num_threads(world.state["threads"])
        with chdir(world.folder), self.work.counted() as rows:
            try:
                answer = DOORS[door].ask(world)
            except RefusedError as error:
                answer = error
        torch.set_num_threads(usual_threads)
        makes = DOORS[door].makes
        if makes and not isinstance(answer, RefusedError) and (makes != "index" or makes not in world.made):
            world.made[makes] = dict(world.state)
            world.made.setdefault("run", dict(world.state))
        return answer, rows[0]

    def fresh(self, kind: str, door: str, state: State) -> tuple[Any, int]:
        """Return the answer of a new world of this state, and how many rows it takes."""
        matters = relevant(kind, door, state)
        key = kind, door, repr(sorted(matters.items()))
        if key not in self.answered:
            world = new_world(kind, self.root / f"new{next(self.numbers)}", usual(kind) | matters, self.root)
            answer, most = None, 0
            for one in (*DOORS[door].after, door):
                if not isinstance(answer, RefusedError):
                    answer, rows = self.ask(world, one)
                    most += rows
            shutil.rmtree(world.folder)
            self.answered[key] = answer, most
        return self.answered[key]

    def story(self, kind: str, door: str, fact: str) -> "Story":
        """Return a story in which a door was asked once, in a state in which the fact matters."""
        methods = methods_with(kind, fact)
        if (kind, door, methods) in self.begun and kind != "module":
            return self.begun[kind, door, methods].copied(self.root / "story")
        story = Story(self, new_world(kind, self.root / "story", usual(kind) | {"methods": methods}, self.root))
        story.how = story.ask_all(door)
        if kind != "module" and not story.how:
            self.begun[kind, door, methods] = story.copied(self.root / f"begun{next(self.numbers)}")
        return story


def relevant(kind: str, door: str, state: State) -> State:
    """What an answer depends on."""
    state = state if DOORS[door].method is None else state | {"methods": DOORS[door].method, "methods order": 0}
    methods = (None, *state["methods"].split(","))
    names = [name for name in facts_of(kind) if verdict(kind, door, name) != "-" and FACTS[name].method in methods]
    return {name: state[name] for name in names}


class Story:
    """A world that is changed and asked."""

    def __init__(self, lab: Lab, world: World) -> None:
        self.lab, self.kind, self.world = lab, world.kind, world
        self.changed: list[str] = []
        self.asked: list[str] = []
        self.answers: dict[str, list[tuple[State, Any]]] = {}
        self.how = ""  # the last answer broke the law

    def copied(self, folder: Path) -> "Story":
        """Return the same story in a copy of its world. Of what stands in files, only places are changed."""
        shutil.copytree(self.world.folder, folder)
        copy = Story(self.lab, World(self.kind, folder, self.world.state, self.world.template))
        copy.world.made, copy.asked = deepcopy(self.world.made), [*self.asked]
        copy.answers = {door: [*answers] for door, answers in self.answers.items()}
        return copy

    def end(self) -> None:
        shutil.rmtree(self.world.folder)

    def change(self, fact: str, value: Any) -> None:
        """Change one thing."""
        self.changed.append(fact)
        change(self.world, fact, value)

    def turn(self, fact: str, value: Any, door: str) -> str:
        """Ask by a door unless it was asked before, change one thing, and ask again; return how the law is broken."""
        state, how = self.world.state, ""
        method = FACTS[fact].method
        if method not in (None, *state["methods"].split(",")):
            self.change("methods", methods_with(self.kind, fact))
            how = self.ask_all(door)
        elif door not in self.asked:
            how = self.ask_all(door)
        if how:
            return how
        self.change(fact, next(one for one in (value, *values_of(self.kind, fact)) if one != state[fact]))
        return self.ask_all(door)

    def ask_all(self, door: str) -> str:
        """Ask by a door, and before by those that it needs; return how the law is broken."""
        doors = [one for one in DOORS[door].after if DOORS[one].makes not in self.world.made]
        return next(filter(None, map(self.ask, [*doors, door])), "")

    def ask(self, door: str) -> str:
        """Ask, and return how the law is broken; an empty text if it is not."""
        world, now = self.world, dict(self.world.state)
        made = world.made.get(DOORS[door].reads, now)
        expected = now | {name: made[name] for name in facts_of(self.kind) if "m" in verdict(self.kind, door, name)}
        changed = [name for name in relevant(self.kind, door, expected) if now[name] != made[name]]
        verdicts = {verdict(self.kind, door, name) for name in changed}
        self.asked.append(door)
        before = self._kept()
        answer, rows = self.lab.ask(world, door)
        if isinstance(answer, RefusedError) and any("r" in one for one in verdicts):
            for name in changed:
                if "r" in verdict(self.kind, door, name):
                    change(world, name, made[name])
            return "" if self._kept() == before else "overwritten"
        if "r" in verdicts:
            return "answered"
        fresh, most = self.lab.fresh(self.kind, door, expected)
        if isinstance(fresh, RefusedError) or isinstance(answer, RefusedError):
            if type(fresh) is not type(answer):
                return "refused" if isinstance(answer, RefusedError) else "answered"
            return "" if expected["methods"] == "journey-trak" else "refused"  # of other pictures than the model draws
        tolerance = tolerance_in(now)
        earlier = self.answers.setdefault(door, [])
        if not alike(answer, fresh, tolerance):
            return "stale" if any(alike(answer, one, tolerance) for _, one in earlier) else "wrong"
        if isinstance(answer, dict) and answer.get("trusted") == (not is_measured(self.kind, expected)):
            return "trusted" if answer["trusted"] else "not trusted"
        limits = [self._limit(door, one, expected, most) for one, _ in earlier]
        ignored = [one for one in earlier if self._is_seen(door, one[0], expected) and alike(answer, one[1], 1e-4)]
        earlier.append((expected, answer))
        return "ignored" if ignored else "computed" if rows > min([most, *limits]) else ""

    def _is_seen(self, door: str, earlier: State, now: State) -> bool:
        """Whether the answers in two states have to differ: in one thing that each answer shows."""
        differing = [name for name, value in relevant(self.kind, door, now).items() if value != earlier[name]]
        return len(differing) == 1 and differing[0] not in UNSEEN and verdict(self.kind, door, differing[0]) == "n"

    def _limit(self, door: str, earlier: State, now: State, most: int) -> float:
        """How many rows may be computed if this door has answered in an earlier state."""
        differing = [name for name, value in relevant(self.kind, door, now).items() if value != earlier[name]]
        costs = [COSTS[FACTS[name].touches[self.kind]] for name in differing]
        if DOORS[door].reads == "scores" and door != "explorer":
            return 0
        if "all" in costs or costs.count("one") > 1:
            return most
        return 0.6 * most if "one" in costs or door == "index" else 0

    def _kept(self) -> str:
        """The content of what users may have paid for, or handed on."""
        folder, digest = self.world.folder, sha256()
        for path in sorted([*folder.glob("run/*"), *folder.glob("run/generated/*"), *folder.glob("index/**/*")]):
            if path.is_file():
                digest.update(f"{path} ".encode() + path.read_bytes())
        return digest.hexdigest()


def tolerance_in(state: State) -> float:
    """How far two answers may differ, ÷ the largest number: numbers of few digits are rounded in another way if other
    images share a pass, or another number of threads its sums.
    """
    has_few_digits = state["autocast"] or state["precision"] or state["dtype"] != "float32"
    return 2e-2 if has_few_digits and (state["batch_size"] or state["threads"] > 1) else 1e-4


def is_measured(kind: str, state: State) -> bool | None:
    """Whether the LDS in the template is that of the scores in this state; None if either answer is right."""
    if kind != "pixels" or state["methods"] != MEASURED:
        return None
    changed = [name for name, value in relevant(kind, "report", state).items() if value != usual(kind)[name]]
    if {"name", "order", "swap", "methods order"}.intersection(changed):
        return None
    return not {FACTS[name].touches[kind] for name in changed} & {"image", "model", "rows", "numbers", "members"}
