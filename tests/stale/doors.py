"""The doors by which a world is asked. Every answer is made of plain values, which `alike` compares."""

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from starlette.testclient import TestClient

import dtrak
from changes import settings
from commands import dtrak as new_process
from dtrak.engines import make_engine
from in_process import RefusedError, command, explore, quietly
from worlds import World

PATIENCE = 60  # seconds, until the explorer has computed an answer


@dataclass(frozen=True)
class Door:
    """One way to ask."""

    ask: Callable[[World], Any]  # called in the folder of the world
    kinds: str
    after: tuple[str, ...] = ()  # doors that have to be asked before
    makes: str | None = None  # what the answer leaves behind in the folder, if it stays when other things change
    reads: str | None = None  # what an earlier answer has left behind
    method: str | None = None  # if it has always the same


def ask_python(world: World) -> Any:
    """`dtrak.attribute`, with a cache folder."""
    given, engine = settings(world), world.state["engine"]
    methods = given.pop("method").split(",")
    with quietly():
        scores = dtrak.attribute(
            world.model(),
            world.images("train"),
            world.images("queries"),
            methods,
            cache=world.folder / "cache",
            engine=None if engine is None else make_engine(engine),
            **given,
        )
    return {name: described(one) for name, one in scores.items()}


def ask_command(world: World) -> Any:
    """`dtrak attribute`: of a run whose recipe has all settings, or of a model and with all settings typed."""
    engine = [] if world.state["engine"] is None else ["--engine", world.state["engine"]]
    of = ["run"]
    if not world.is_trained:
        precision = typed({"precision": world.state["precision"], "prompt": world.prompt})
        of = ["--run", "run", "--model", "base", "--train", "train", *precision, *typed(settings(world))]
    command("attribute", *of, "--queries", world.images("queries"), *engine)
    methods = world.state["methods"].split(",")
    return {name: described(dtrak.Scores.load("run/scores.npz", name)) for name in methods}


def read_scores(world: World) -> Any:
    """The scores that a run has, and their images."""
    found: dict[str, Any] = {}
    with quietly():
        for name in methods_of_run(world):
            scores = dtrak.open_run("run").scores(name)
            assert scores.train is not None
            assert scores.queries is not None
            shown = [images.pixels(range(len(images))) for images in (scores.train, scores.queries)]
            found[name] = [described(scores), shown]
    return found


def write_report(world: World) -> Any:
    command("report", "run")
    page = plain(world, Path("run/report.html").read_text())
    return {"page": page, "trusted": is_trust(re.sub("<script.*?</script>", "", page, flags=re.DOTALL))}


def give_credit(world: World) -> Any:
    command("credit", "run", "--by", "artist", "--method", min(methods_of_run(world)), "--out", "credit.csv")
    return Path("credit.csv").read_text()


def draw_card(world: World) -> Any:
    first = "seed-00000.png" if "journey-trak" in methods_of_run(world) else "q0.png"
    command("card", "run", first, "--method", min(methods_of_run(world)), "--out", "card.svg")
    return plain(world, Path("card.svg").read_text())


def serve(world: World) -> Any:
    """What the pages of the explorer say about each picture that was attributed last."""
    method = min(methods_of_run(world))

    def pages(client: TestClient) -> Any:
        run = get(client, "run")
        names = {one["name"] for one in run["sets"] if one["count"]}
        name = "attributed" if "attributed" in names else "validation"
        found: dict[str, Any] = {"trusted": is_trust(run["trust"][method])}
        for one in get(client, "queries", set=name)["items"]:
            answer = get(client, "answer", set=name, query=one["id"], method=method, count=500)
            ranked = sorted(answer["proponents"] + answer["opponents"], key=lambda image: str(image["id"]))
            found[one["id"]] = {
                "columns": [one["columns"], [[image["id"], image["columns"]] for image in ranked], answer["prompt"]],
                "scores": np.array([image["score"] for image in ranked]),
                "credit": json.dumps(answer["credit"], sort_keys=True),
            }
        return found

    return explore("run", asking=pages)


def get(client: TestClient, page: str, **query: Any) -> Any:
    """The content of a page, when it is ready."""
    end = time.monotonic() + PATIENCE
    while True:
        response = client.get(f"/api/{page}", params=query)
        if response.status_code == 422:
            raise RefusedError(response.json()["error"])
        if response.status_code != 202:
            assert response.status_code == 200, response.text
            return response.json()
        assert time.monotonic() < end, response.text
        time.sleep(0.005)


def search(world: World) -> Any:
    """Search the index, which is made if there is none."""
    if not Path("index").exists():
        chosen = {} if world.is_trained else settings(world)
        command("index", "run", "--out", "index", *typed(chosen | {"method": "step-trak"}))
    command("search", "index", "--queries", "queries", "--top", 5, "--out", "top.npz")
    return described(dtrak.Scores.load("top.npz"))


def generate(world: World) -> Any:
    command("generate", "run", "--count", 2, "--seed", world.state["first seed"])
    files = sorted(Path("run/generated").glob("seed-*.png"))
    drawn = {path.name: np.asarray(Image.open(path)).astype(float) / 128 for path in files}  # ±1 of 255 is rounding
    return drawn | {"metadata": Path("run/generated/metadata.jsonl").read_text()}


def ask_new_process(world: World) -> Any:
    """`dtrak attribute` as a shell runs it, of a model from elsewhere and with an objective of an installed package."""
    asked = ["--model", "run/model", "--train", "train", "--queries", "queries", "--objective", "outside"]
    asked += ["--timesteps", 2, "--projection-dim", 96, "--damping", 0.1, "--cache", "outside", "--out", "outside.npz"]
    done = new_process("attribute", *asked, cwd=world.folder, packages=world.folder / "packages")
    if done.code:
        raise RefusedError(done.error)
    return described(dtrak.Scores.load("outside.npz"))


DOORS = {
    "python": Door(ask_python, "pixels lora latent module"),
    "command": Door(ask_command, "pixels lora latent", makes="scores", reads="run"),
    "scores": Door(read_scores, "pixels lora latent", after=("command",), reads="scores"),
    "report": Door(write_report, "pixels lora latent", after=("command",), reads="scores"),
    "credit": Door(give_credit, "pixels lora latent", after=("command",), reads="scores"),
    "card": Door(draw_card, "pixels lora latent", after=("command",), reads="scores"),
    "explorer": Door(serve, "pixels lora latent", after=("command",), reads="scores"),
    "index": Door(search, "pixels lora latent", after=("command",), makes="index", reads="index", method="step-trak"),
    "generate": Door(generate, "pixels lora", makes="pictures", reads="pictures"),
    "new process": Door(ask_new_process, "pixels", method="d-trak"),
}


def doors_of(kind: str) -> list[str]:
    return [name for name, door in DOORS.items() if kind in door.kinds]


# answers


def typed(given: Mapping[str, Any]) -> list[object]:
    """Settings as options of a command."""
    named = {f"--{name.replace('_', '-')}": value for name, value in given.items() if value not in (None, False)}
    return [part for name, value in named.items() for part in ([name] if value is True else [name, value])]


def methods_of_run(world: World) -> list[str]:
    return str(world.made["scores"]["methods"]).split(",")


def described(scores: dtrak.Scores) -> Any:
    columns = {name: np.asarray(values).astype(str).tolist() for name, values in scores.columns.items()}
    own = np.zeros(0) if scores.self_influence is None else scores.self_influence
    ids = [np.asarray(one).astype(str).tolist() for one in (scores.train_ids, scores.query_ids)]
    return {"values": scores.values, "ids": ids, "columns": columns, "self-influence": own}


def plain(world: World, page: str) -> str:
    """A page without its place, its date and the seconds that it took."""
    page = page.replace(str(world.folder), "FOLDER")
    page = re.sub(r"\d{4}-\d\d-\d\d", "DATE", page)
    return re.sub(r"Time of the last attribution.*?</dd>|about [^<]{1,20} on this machine", "", page, flags=re.DOTALL)


def is_trust(words: str) -> bool:
    """Whether a text says that the LDS of these very scores was measured."""
    return "LDS" in words and "measured with other" not in words and "Not measured" not in words


NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def alike(one: Any, other: Any, tolerance: float) -> bool:
    """Whether two answers are the same, up to rounding: arrays to `tolerance` of their largest number."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key], tolerance) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(alike(*pair, tolerance) for pair in zip(one, other, strict=True))
    if isinstance(one, np.ndarray):
        largest = max([np.abs(each).max() for each in (one, other) if each.size], default=0)
        return one.shape == other.shape and np.allclose(one, other, rtol=0, atol=tolerance * largest)
    if isinstance(one, str) and one != other:  # numbers in a text are rounded
        numbers = [np.array(NUMBER.findall(text), dtype=float) for text in (one, other)]
        same = NUMBER.sub("#", one) == NUMBER.sub("#", other)
        return same and np.allclose(*numbers, rtol=100 * tolerance, atol=100 * tolerance)
    return bool(one == other)
