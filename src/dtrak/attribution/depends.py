"""What depends on what. A part is the facts that one kept thing depends on, and nothing else.

What is kept carries its part, and is used again if and only if that part is the same now. All parts are made here, from
the facts of a question (`question.py`), without opening a model or an image.
"""

from collections.abc import Sequence
from typing import Any, Literal

from dtrak.features.spec import Spec
from dtrak.fingerprints import Facts, first_difference
from dtrak.methods.method import Embeddings, Gradients, Method, NoisedPixels, Nothing, Outcomes, Pixels

VERSION = 2  # is raised when the same facts would give other numbers
Side = Literal["train", "queries", "trajectories"]
DRAWN_BY = ("ddim_steps", "guidance", "step")  # how queries are drawn again, along their trajectories
NOISED_BY = ("timesteps", "draws", "noise", "seed")


def of_images(facts: Facts, side: Side) -> dict[str, Any]:
    """The pixels in their order, and the columns that the model's conditions read."""
    name = "train" if side == "train" else "queries"
    images, reads = facts[name], facts["model"]["reads"]  # None: conditions may depend on any column
    read = {column: images["columns"].get(column) for column in (images["columns"] if reads is None else reads)}
    return {name: {"shape": images["shape"], "pixels": images["pixels"], "columns": read}}


def of_model(model: Facts) -> dict[str, Any]:
    """What gradients depend on; how pictures are drawn does not count."""
    return {name: value for name, value in model.items() if name not in ("reads", "solver")}


def of_features(facts: Facts, spec: Spec, objective: str, side: Side, member: int = 0) -> dict[str, Any]:
    """The features of one objective by one of the models, of the images of one side."""
    drawn = {}
    if side == "trajectories":
        seeds = facts["queries"]["columns"].get("seed")
        drawn = {"drawn": {"seed": seeds, **{name: facts["settings"][name] for name in DRAWN_BY}}}
    return {
        "version": VERSION,
        "model": of_model(facts["members"][spec.models][member]),
        "objective": {objective: facts["objectives"][objective]},
        "spec": spec.facts,
        "images": next(iter(of_images(facts, side).values())),
        **drawn,
    }


def of_passes(facts: Facts, spec: Spec, *more: str) -> dict[str, Any]:
    """What passes of the training images through the model give without a projection; `more` of the spec may count."""
    return {
        "version": VERSION,
        "model": of_model(facts["members"]["final"][0]),
        "spec": {name: spec.facts[name] for name in (*NOISED_BY, "autocast", *more)},
        "images": next(iter(of_images(facts, "train").values())),
    }


def of_embeddings(facts: Facts, side: Side) -> dict[str, Any]:
    """The embeddings of the images of one side."""
    images = facts["train" if side == "train" else "queries"]
    return {"encoder": facts["encoder"], "images": {name: images[name] for name in ("shape", "pixels")}}


def of_kernel(
    facts: Facts, method: Method, spec: Spec, objectives: Sequence[str], member: int, copy: int | None
) -> dict[str, Any]:
    """The kernel that is fitted on the features of some objectives, side by side, or on one copy of them."""
    needs = method.needs
    return {
        "train": [of_features(facts, spec, one, "train", member) for one in objectives],
        "kernel": facts["methods"][method.name]["kernel"],
        "unit": isinstance(needs, Gradients) and needs.unit,
        "copy": copy,
    }


def of_scores(facts: Facts, method: Method, with_queries: bool = True) -> dict[str, Any]:
    """The scores of a method. Without the queries: what an index and a measured LDS have to share with scores."""
    settings, needs = facts["settings"], method.needs
    sides: list[Side] = ["train", "queries"] if with_queries else ["train"]
    part: dict[str, Any] = {"version": VERSION, "method": facts["methods"][method.name]}
    for side in sides:
        part |= of_images(facts, side)
    if method.kernel is not None:
        part["settings"] = {"damping": settings["damping"]}
    match needs:
        case Gradients():
            along = DRAWN_BY if needs.queries == "trajectories" and with_queries else ()
            part["settings"] = part.get("settings", {}) | {name: settings[name] for name in along}
            if along:
                part["queries"]["columns"] |= {"seed": facts["queries"]["columns"].get("seed")}
            part["spec"] = facts["methods"][method.name]["spec"]
            part["members"] = [of_model(one) for one in facts["members"][needs.models]]
            part["objectives"] = {
                name: facts["objectives"][name] for name in facts["methods"][method.name]["objectives"]
            }
        case Pixels():
            part["model"] = {"autoencoder": facts["model"]["autoencoder"]}
        case NoisedPixels():
            part["model"] = {name: facts["model"][name] for name in ("autoencoder", "noise")}
            part["settings"] = {name: settings[name] for name in NOISED_BY}
        case Embeddings():
            part["encoder"] = facts["encoder"]
        case Outcomes():
            part["settings"] = {name: settings[name] for name in ("retrained_count", "output")}
            part["outcomes"] = facts["outcomes"]
        case Nothing():
            part["settings"] = {"seed": settings["seed"]}
        case _:  # of another package
            part |= {name: facts[name] for name in ("settings", "members", "objectives", "model")}
    return part


def of_what_is_shown(facts: Facts, method: Method) -> dict[str, Any]:
    """The scores of a method, and the names and all columns of both sides: what a page or a table shows."""
    part = of_scores(facts, method)
    for side in ("train", "queries"):
        part[side] = part[side] | {"ids": facts[side]["ids"], "columns": facts[side]["columns"]}
    return part


CHANGED = {
    "model.weights": "the weights of the model have changed",
    "model.network": "the network of the model, or one of its settings, has changed",
    "model.noise": "the noise process of the model has changed",
    "model.autoencoder": "the autoencoder of the model has changed",
    "model.conditions": "what the model makes of prompts or classes has changed",
    "model": "the model has changed",
    "members": "one of the models has changed",
    "train.ids": "the names of the training images have changed",
    "train": "the training images have changed",
    "queries.ids": "the names of the pictures have changed",
    "queries": "the pictures have changed",
    "drawn": "the pictures were drawn in another way",
    "images": "the images have changed",
    "spec": "the settings of the features have changed",
    "settings": "the settings have changed",
    "kernel": "the kernel has changed",
    "objective": "the objective has changed",
    "objectives": "the objective has changed",
    "method": "the method has changed",
    "outcomes": "the losses of the retrained models have changed",
    "encoder": "the encoder of images has changed",
    "version": "another version of dtrak made it",
}
SIDES = {"train": "the training images", "queries": "the pictures"}


def what_changed(then: Facts, now: Facts) -> str | None:
    """Say in words what differs between two parts: "the column artist of the training images has changed"."""
    path = first_difference(then, now)
    if path is None:
        return None
    names = path.split(".")
    if len(names) == 3 and names[0] in SIDES and names[1] == "columns":
        return f"the column {names[2]} of {SIDES[names[0]]} has changed"
    if names[0] in ("settings", "spec"):
        before, after = then, now
        for name in names:
            before, after = (one[int(name) if isinstance(one, list) else name] for one in (before, after))
        return f"{names[-1].replace('_', ' ')} is {after}, and was {before}"
    return next(CHANGED[one] for one in (".".join(names[:2]), names[0]) if one in CHANGED)
