"""What the explorer keeps of the pictures that it was asked about has bounds, and the oldest goes first."""

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import dtrak
from dtrak.explorer.catalog import Catalog
from dtrak.explorer.kept_pictures import MAX_BYTES, MAX_PICTURES, features_of, keep, kept, name_of, remove_oldest
from dtrak.explorer.work_queue import WorkQueue
from dtrak.runs.run import Run
from serving import Server, encoded, served


def picture(number: int) -> NDArray[np.uint8]:
    """[8, 8, 1], another one for every number."""
    return np.random.default_rng(number).integers(0, 256, (8, 8, 1), dtype=np.uint8)


def fill(run: Path, count: int) -> list[str]:
    """Pictures that were asked about before, the oldest first."""
    opened, ids = Run.open(run), []
    for number in range(count):
        ids += keep(opened, picture(number)).ids.tolist()
        os.utime(run / "asked" / ids[-1], (1000 + number, 1000 + number))
    return ids


def ask(server: Server, number: int) -> str:
    return server.answered(server.ask(picture=("x.png", encoded(Image.fromarray(picture(number)[..., 0]), "PNG"))))


def there(run: Path) -> set[str]:
    return {path.name for path in (run / "asked").glob("*.png")}


def test_the_oldest_pictures_make_room(own_run: Path) -> None:
    ids = fill(own_run, MAX_PICTURES)
    (own_run / "asked" / "notes.txt").write_text("mine")
    with served(own_run, "--method", "d-trak") as server:
        about = server.get("run")
        assert about["kept"] == {"pictures": MAX_PICTURES, "bytes": MAX_BYTES}
        assert about["sets"][-1] == {"name": "asked", "title": "pictures added here", "count": MAX_PICTURES}
        new = [ask(server, 1000 + number) for number in range(3)]
        assert there(own_run) == {*ids[3:], *new}
        assert server.get("run")["sets"][-1]["count"] == MAX_PICTURES
        listed = server.get("queries", set="asked", size=MAX_PICTURES)["items"]
        assert [one["id"] for one in listed] == [*ids[3:], *new]
        assert [one["number"] for one in listed] == [*range(3, MAX_PICTURES + 3)]
    assert (own_run / "asked" / "notes.txt").read_text() == "mine"


def test_bytes_count_as_well(own_run: Path) -> None:
    ids = fill(own_run, 4)
    opened = Run.open(own_run)
    (own_run / "asked" / ids[0]).rename(own_run / "asked" / "0123456789abcdef.png")  # not the name of its pixels
    with served(own_run, "--method", "d-trak,raw-pixel-cosine") as server:
        old = [one["id"] for one in server.get("queries", set="asked")["items"]]
        assert old == ["0123456789abcdef.png", *ids[1:]]
        assert len(server.get("transpose", set="asked", train=3)["proponents"]) > 0  # all have features now
        stores = {one: features_of(opened, one) for one in old}
        assert all(any(one.rglob("shard-*.safetensors")) for one in stores.values())
        with next(stores[ids[2]].rglob("shard-*.safetensors")).open("r+b") as file:
            file.truncate(MAX_BYTES)  # that the disk does not have to hold
        new = ask(server, 1000)
        left = [old[0], ids[3], new]  # two had to go, and the first of all is not ours to remove
        assert there(own_run) == {*left}
        assert [one for one in old if stores[one].exists()] == left[:2]
        assert [one["id"] for one in server.get("queries", set="asked")["items"]] == left
        for gone, number in ((ids[1], 1), (ids[2], 2)):
            assert server.client.get("/api/answer", params={"set": "asked", "query": gone}).status_code == 404
            assert server.client.get(f"/images/small/asked/{number}").status_code == 404
        answer = server.get("answer", set="asked", query=ids[3])
        assert (answer["previous"], answer["next"]) == (old[0], new)
        found = server.get("transpose", set="asked", train=3)
        assert len(found["proponents"] + found["opponents"]) == 3
        assert server.get("scores.csv", set="asked").count("\n") == 3001
        assert ask(server, 1) == ids[1]  # it is answered anew
        assert server.get("answer", set="asked", query=ids[1])["query"]["id"] == ids[1]


def test_what_was_removed_by_hand_is_forgotten(own_run: Path) -> None:
    ids = fill(own_run, 2)
    with served(own_run, "--method", "d-trak") as server:
        assert ask(server, 0) == ids[0]
        (own_run / "asked" / ids[0]).unlink()
        ask(server, 1000)
        assert ids[0] not in [one["id"] for one in server.get("queries", set="asked")["items"]]
        assert ask(server, 0) == ids[0]
        assert ids[0] in there(own_run)


def test_what_others_put_there_stays(own_run: Path) -> None:
    """Of a picture's folder, only what the program itself has made is removed."""
    ids, opened = fill(own_run, MAX_PICTURES + 2), Run.open(own_run)
    store = features_of(opened, ids[0]) / "settings" / "queries-0-simple"
    (store / ".locks").mkdir(parents=True)
    ours = ("part.json", "rows.npy", "cost.json", "checked.json", "shard-00000.safetensors", ".locks/00000")
    for name in (*ours, "thesis.docx"):
        (store / name).write_text(name)
    elsewhere = own_run.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "part.json").write_text("mine")
    features_of(opened, ids[1]).symlink_to(elsewhere)
    assert remove_oldest(opened, but=ids[-1]) == {*ids[2:]}
    assert [path.name for path in store.rglob("*")] == ["thesis.docx"]
    assert (elsewhere / "part.json").read_text() == "mine"
    assert remove_oldest(opened, but=ids[-1]) == {*ids[2:]}


def test_the_picture_that_was_asked_about_last_is_never_removed(own_run: Path) -> None:
    ids, opened = fill(own_run, MAX_PICTURES + 1), Run.open(own_run)
    assert remove_oldest(opened, but=ids[0]) == {ids[0], *ids[2:]}


def test_a_picture_with_a_prompt_is_known_by_it(own_run: Path) -> None:
    opened = Run.open(own_run)
    ids = fill(own_run, MAX_PICTURES)
    told = keep(opened, picture(0), seed=3, prompt="a disc").ids.tolist()[0]
    assert told == name_of(picture(0), "a disc") != ids[0]
    os.utime(own_run / "asked" / told, (1, 1))
    assert remove_oldest(opened, but=ids[-1]) == {*ids}
    assert not (own_run / "asked" / told).with_suffix(".json").exists()


@pytest.mark.parametrize("content", ["[1, 2]", "7", "{", "\xff", '{"seed": "x"}', '{"seed": null}'])
def test_damaged_notes_are_left_out(own_run: Path, content: str) -> None:
    ids = fill(own_run, 2)
    (own_run / "asked" / ids[0]).with_suffix(".json").write_text(content, encoding="latin-1")
    os.mkfifo(own_run / "asked" / "00000000000000ff.png")
    assert [one.ids.tolist() for one in kept(Run.open(own_run))] == [[ids[1]]]


def test_numbers_are_given_once() -> None:
    """As browsers keep the image of a number."""
    images = dtrak.load_images("digits:train")
    catalog = Catalog("pictures", *(images.select([row]) for row in range(4)))
    before = catalog.entries
    catalog.remove(catalog.by_id["1"])
    assert [entry.number for entry in catalog.entries] == [0, 2, 3]
    assert len(before) == 4  # for whoever reads them now
    catalog.add(images.select([9]))
    assert [entry.number for entry in catalog.entries] == [0, 2, 3, 4]
    assert catalog.neighbours(catalog.by_id["2"]) == {"previous": "0", "next": "3"}
    assert catalog.neighbours(before[1]) == {"previous": "0", "next": "2"}  # of one that has gone


def test_questions_that_have_ended_hold_no_picture() -> None:
    queue = WorkQueue()
    question = queue.add("one", "one", lambda: "id")
    while question.state != "done":
        pass
    assert queue.close()
    assert question.work is None
    queue.forget("id")
    assert not queue.by_id
