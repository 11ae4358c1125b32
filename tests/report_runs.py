"""Runs to report on: with random scores where only the page matters, and with paintings by the thousand."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dtrak.attribution.opened import Opened
from dtrak.attribution.scores import Scores, save_scores
from dtrak.attribution.settings import Settings
from dtrak.files import write_text
from dtrak.methods import METHODS
from dtrak.runs.recipes import Recipe, dump_recipe, load_recipe
from dtrak.runs.run import Run
from dtrak.runs.run_questions import question_of

HOSTILE = '</title><script>alert("caption")</script>'
ARTISTS = ("Klee", "af Klint & <b>co</b>")


def make_run(
    folder: Path,
    recipe: Recipe,
    queries: str,
    count: int,
    methods: tuple[str, ...] = ("d-trak",),
    shift: float = 0.0,
    kernels: tuple[str, ...] = (),
) -> tuple[Run, dict[str, Scores]]:
    """A run with random scores of its first `count` queries, moved by `shift`; `kernels` have self-influence."""
    write_text(folder / "recipe.yaml", dump_recipe(recipe))
    run = Run.open(folder)
    train, ids = run.train_images, run.query_images(queries).ids[:count]
    random = np.random.default_rng(0)
    scores = {}
    for method in methods:
        values = random.normal(shift, size=(len(ids), len(train))).astype(np.float32)
        own = random.random(len(train)).astype(np.float32) if method in kernels else None
        scores[method] = Scores(values, train.ids, ids, method, train.columns, own)
    keep(run, scores, queries, methods, damping=0.1)
    return run, scores


def keep(run: Run, scores: Mapping[str, Scores], queries: str, methods: Sequence[str], **settings: Any) -> None:
    """Write scores of a run as if they answered this question."""
    asked = asked_of(run, queries, methods, **settings)
    save_scores(run.folder / "scores.npz", {name: replace(one, question=asked) for name, one in scores.items()})


def asked_of(run: Run, queries: str, methods: Sequence[str], **settings: Any) -> dict[str, Any]:
    """The question with these settings, as data; its model is none, as no page looks at it."""
    chosen = [METHODS[name] for name in methods]
    question = question_of(run, run.query_source(queries), chosen, Settings(**settings))
    opened = Opened(question, run.features)
    images = {"train": question.train.facts, "queries": run.query_images(queries).facts}
    of_methods = {one.name: opened.method_facts(one) for one in chosen}
    objectives = {name: name for one in of_methods.values() for name in one["objectives"]}
    members = {kind: [{}] for kind in ("final", "checkpoints", "retrained")}
    model = {"reads": [], "autoencoder": None, "noise": None}
    rest = {"settings": question.settings.facts, "objectives": objectives, "encoder": None, "outcomes": None}
    return question.asked({"model": model, **images, "methods": of_methods, "members": members, **rest})


def paintings(folder: Path, count: int, size: tuple[int, int]) -> Recipe:
    """A recipe whose training images are so many in colour, with artists and a hostile caption."""
    random = np.random.default_rng(0)
    rows = []
    (folder / "art").mkdir(parents=True)
    for n in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        coarse.resize(size, Image.Resampling.BICUBIC).save(folder / "art" / f"{n:03d}.png")
        rows.append({"file_name": f"{n:03d}.png", "artist": ARTISTS[n % 2], "caption": HOSTILE})
    (folder / "art" / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return _recipe(str(folder / "art"))


def gallery(folder: Path, train: int, queries: int, side: int = 64) -> tuple[Recipe, str]:
    """A recipe with so many textured images of forty artists with long captions, and as many queries with prompts."""
    folder.mkdir(parents=True)
    captions = [f"painting {n}, " + "a quiet harbour with boats at dusk, " * 4 for n in range(train)]
    artists = [f"artist {n % 40:02d}" for n in range(train)]
    np.savez(folder / "train.npz", images=_textures(train, side, 0), artist=artists, caption=captions)
    np.savez(folder / "queries.npz", images=_textures(queries, side, 1), prompt=captions[:queries])
    return _recipe(str(folder / "train.npz")), str(folder / "queries.npz")


def _recipe(train: str) -> Recipe:
    content: dict[str, Any] = load_recipe("digits").model_dump() | {"data": {"train": train}}
    return Recipe.model_validate(content | {"summary": HOSTILE})


def _textures(count: int, side: int, seed: int) -> np.ndarray:
    """uint8 [count, side, side, 3]: broad colours under fine strokes, which compress about as photographs do."""
    random = np.random.default_rng(seed)
    pixels = np.full((count, side, side, 3), 30, dtype=np.uint8)
    for cells, strength in ((4, 110), (16, 60), (side, 25)):
        coarse = random.integers(0, strength, (count, cells, cells, 3), dtype=np.uint8)
        pixels += coarse.repeat(side // cells, 1).repeat(side // cells, 2)
    return pixels
