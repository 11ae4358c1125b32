"""What can change in a world: one table of facts, each with what it touches in each kind of world."""

import ast
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from memory_world import MemoryWorld, write_memory
from worlds import (
    MEASURED,
    State,
    World,
    make_template,
    move,
    overwrite,
    touch,
    write_images,
    write_lora,
    write_losses,
    write_plug_in,
    write_schedule,
    write_weights,
)

KINDS = ("pixels", "lora", "latent", "module")
NOTHING = "nothing"

# What a fact can touch, and what has to be computed when only this has changed: all rows, those of one image, or none.
COSTS = {
    "image": "one",  # an image that is new, or has other pixels
    "order": "none",  # order and ids
    "column": "none",  # a column that no model reads
    "prompt": "one",  # what the model reads beside an image
    "query": "one",  # a query, or what the model reads beside it
    "model": "all",
    "typed": "all",  # what is typed about a model
    "rows": "all",  # settings that change gradients
    "numbers": "none",  # settings that change scores alone
    "members": "all",  # checkpoints, retrained models, encoders of images
    "drawing": "all",  # how pictures are drawn
    "package": "all",  # an installed one, with an objective
    "place": "none",  # of the folder that holds all
    "nothing": "none",
}

# Columns are apart by two blanks. A fact that is asked by one method is changed together with the methods, if need be.
# "given": it is not in the files of a world, but given with each question.
TABLE = """
                      pixels   lora     latent   module   asked by       written by  values
pixel                 image    image    image    image    all            images      (0, 1)
added                 image    image    image    -        all            images      (0, 1)
name                  order    order    order    -        all            images      (0, 1)
order                 order    order    order    -        all            images      (0, 1)
swap                  order    order    order    -        all            images      (0, 1)
artist                column   column   column   column   all            images      (0, 1)
caption               column   prompt   prompt   -        all            images      (0, 1)
label                 -        -        -        prompt   all            given       (0, 1)
query pixel           query    query    query    query    all            images      (0, 1)
query caption         column   query    query    -        all            images      (0, 1)

weights               model    model    model    model    all            weights     (0, 1)
autoencoder weights   -        model    model    model    all            weights     (0, 1)
text encoder weights  -        model    model    -        all            weights     (0, 1)
lora weights          -        model    -        -        all            lora        (0, 1)
strength              -        model    -        -        all            lora        (0, 1)
template              -        model    typed    -        all            lora        (0, 1)
precision             -        -        typed    -        all            given       (None, "bfloat16")
scheduler             model    model    model    model    all            schedule    (0, 1)
frozen weights        -        -        -        model    all            given       (0, 1)
averaged weights      -        -        -        model    all            given       (0, 1)
attribute             -        -        -        model    all            given       (0, 1)
adapter               -        -        -        model    all            given       (0, 1)
conditioner           -        -        -        model    all            given       (0, 1)
source                -        -        -        rows     d-trak         given       (0, 1)
helper                -        -        -        rows     d-trak         given       (0, 1)
global                -        -        -        rows     d-trak         given       (0, 1)
object                -        -        -        rows     d-trak         given       (0, 1)
closure               -        -        -        rows     d-trak         given       (0, 1)
package               package  -        -        -        all            package     (0, 1)
checkpoint weights    members  -        -        -        tracin         weights     (0, 1)
retrained weights     members  -        -        -        trak-ensemble  weights     (0, 1)
losses                members  -        -        -        datamodel      losses      (0, 1)
encoder weights       members  -        -        members  clip-dot       weights     (0, 1)

timesteps             rows     rows     rows     rows     all            recipe      (2, "100,700")
draws                 rows     rows     rows     rows     all            recipe      (1, 2)
noise                 rows     rows     rows     rows     all            recipe      ("shared", "per-image")
projection            rows     rows     rows     rows     all            recipe      (None, "dense")
projection_dim        rows     rows     rows     rows     all            recipe      (96, 80)
parameters            rows     rows     rows     rows     all            recipe      (None, "conv_in|lora_A|first")
seed                  rows     rows     rows     rows     all            recipe      (0, 3)
projection_seed       rows     rows     -        rows     all            recipe      (None, 7)
dtype                 rows     rows     rows     rows     all            recipe      ("float32", "bfloat16")
autocast              rows     rows     rows     rows     all            recipe      (False, True)
objective             rows     rows     rows     -        d-trak         recipe      (None, "l1")
checkpoint_count      rows     -        -        -        tracin         recipe      (2, 1)
ensemble_size         rows     -        -        -        trak-ensemble  recipe      (2, 1)
retrained_count       rows     -        -        -        datamodel      recipe      (None, 4)
encoder               rows     -        -        -        clip-dot       recipe      ("clip", "efficientnet-lite0")
step                  rows     -        -        -        journey-trak   recipe      (None, 500)
damping               numbers  numbers  numbers  numbers  all            recipe      (0.1, 0.7)
batch_size            nothing  nothing  nothing  nothing  all            recipe      (None, 3)
skip_bad              nothing  nothing  nothing  nothing  all            recipe      (False, True)
methods               rows     rows     rows     rows     all            recipe      ()
methods order         numbers  -        -        -        all            recipe      (0, 1)

steps                 drawing  drawing  -        -        all            recipe      (3, 2)
guidance              -        drawing  -        -        all            recipe      (2.0, 4.0)
prompts               -        drawing  -        -        all            recipe      (None, ("a cat", "a dog"))
first seed            drawing  drawing  -        -        all            given       (0, 1)

nothing               nothing  nothing  nothing  nothing  all            given       (0, 1)
touch                 nothing  nothing  nothing  -        all            times       (0, 1, 2)
place                 place    place    place    -        all            place       (0, 1)
engine                nothing  nothing  nothing  nothing  all            given       (None, "process")
threads               nothing  nothing  nothing  nothing  all            given       (1, 2)
"""
METHODS = {
    "pixels": (MEASURED, "d-trak", "tracin", "trak-ensemble", "datamodel", "clip-dot", "journey-trak"),
    "lora": ("step-trak", "d-trak"),
    "latent": ("step-trak", "d-trak"),
    "module": ("d-trak", "clip-dot"),
}
DRAWING = ("steps", "guidance", "prompts")


@dataclass(frozen=True)
class Fact:
    """One thing that can change."""

    touches: dict[str, str]  # by the kinds of worlds that have it
    method: str | None  # the method that asks for it; None: all
    write: str  # what makes the files of a world as its state says
    values: tuple[Any, ...]  # the usual one first


def read_table() -> dict[str, Fact]:
    found = {}
    for line in filter(None, TABLE.splitlines()[2:]):
        name, *touched, method, write, values = re.split("  +", line, maxsplit=7)
        touches = {kind: part for kind, part in zip(KINDS, touched, strict=True) if part != "-"}
        found[name] = Fact(touches, None if method == "all" else method, write, ast.literal_eval(values))
    return found


FACTS = read_table()


def write_recipe(world: World) -> None:
    """The recipe of a run that has one. The settings of other worlds are given with each question."""
    if world.is_trained:
        recipe = yaml.safe_load((world.template / "run" / "recipe.yaml").read_text())
        recipe["attribution"] |= settings(world)
        recipe["generation"] |= drawing(world)
        overwrite(world.folder / "run" / "recipe.yaml", yaml.safe_dump(recipe).encode())


WRITERS: dict[str, Callable[[World], None]] = {
    "images": write_images,
    "weights": write_weights,
    "lora": write_lora,
    "schedule": write_schedule,
    "losses": write_losses,
    "package": write_plug_in,
    "recipe": write_recipe,
    "times": touch,
    "place": move,
    "given": lambda world: None,
}


def change(world: World, name: str, value: Any) -> None:
    """Change one thing."""
    world.state[name] = value
    write = write_memory if world.kind == "module" else WRITERS[FACTS[name].write]
    write(world)


def facts_of(kind: str) -> list[str]:
    """The facts that this kind of world has."""
    return [name for name, fact in FACTS.items() if kind in fact.touches]


def values_of(kind: str, name: str) -> tuple[Any, ...]:
    return METHODS[kind] if name == "methods" else FACTS[name].values


def methods_with(kind: str, name: str) -> str:
    """The first methods that ask for a fact."""
    method = FACTS[name].method
    return next(one for one in METHODS[kind] if method in (None, *one.split(",")))


def usual(kind: str) -> State:
    """The state of templates. It has a value for facts of other kinds, too."""
    return {name: values_of(kind, name)[0] for name in FACTS}


def settings(world: World) -> State:
    """The settings of attribution that the state says, and the methods."""
    names = [name for name in facts_of(world.kind) if FACTS[name].write == "recipe" and name.isidentifier()]
    chosen = {name: world.state[name] for name in names if name not in (*DRAWING, "methods")}
    methods = world.state["methods"].split(",")[:: -1 if world.state["methods order"] else 1]
    return chosen | world.fixed() | {"method": ",".join(methods)}


def drawing(world: World) -> State:
    """How pictures are drawn, as recipes have it."""
    return {"count": 2} | {name: world.state[name] for name in DRAWING if world.kind in FACTS[name].touches}


@cache
def template(kind: str, root: Path) -> Path:
    """The folder of the usual state, made once."""
    world = World(kind, root / kind, usual(kind), root / kind)
    make_template(world, settings(world) | {"retrained": None}, drawing(world))
    write_recipe(world)
    return world.folder


def new_world(kind: str, folder: Path, state: State, root: Path) -> World:
    """A world of this state, without a past."""
    if kind == "module":
        folder.mkdir()
        return MemoryWorld(folder, state)
    world = World(kind, folder, usual(kind), template(kind, root))
    shutil.copytree(world.template, folder)
    write_lora(world)
    for name, value in state.items():
        if value != world.state[name]:
            change(world, name, value)
    return world
