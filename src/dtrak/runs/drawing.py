"""Draw a run's pictures into its folder generated/, and write down the seed and the prompt of each."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtrak.errors import UsageError
from dtrak.files import alone_in, replace_folder, write_bytes, write_text
from dtrak.images.image_files import is_whole, png
from dtrak.models import DiffusionModel
from dtrak.models.sampling import BATCH, sample, to_pixels
from dtrak.progress import progress_bar
from dtrak.runs.run import Run

MADE_BY, METADATA = "made-by.json", "metadata.jsonl"
WRITTEN_HERE = re.compile(r"seed-\d{5,}\.png|made-by\.json|metadata\.jsonl")  # the files that `generate` writes


@dataclass(frozen=True)
class Drawing:
    """A picture to draw: its seed and its prompt."""

    seed: int
    prompt: str | None = None

    @property
    def file(self) -> str:
        return f"seed-{self.seed:05d}.png"

    def line(self) -> str:
        """Return the picture's line of the metadata."""
        about = {"file_name": self.file, "seed": self.seed} | ({} if self.prompt is None else {"prompt": self.prompt})
        return json.dumps(about, ensure_ascii=False) + "\n"


def generate(run: Run, model: DiffusionModel, count: int, seed: int, steps: int, prompt: str | None = None) -> None:
    """Draw the pictures of the seeds `seed` … `seed + count − 1`; generated/ then holds these and no others.

    If the model takes prompts, all pictures have the `prompt`; without one, they take turns with the prompts of the
    recipe, or else with those of the training images. Pictures are collected in a folder beside generated/, which
    remains after a kill and replaces generated/ when it is complete. Pictures that the same model has drawn before
    with the same settings are not drawn again.
    """
    settings: dict[str, Any] = {"model": model.fingerprint, "steps": steps}
    guidance = run.generation.guidance
    if model.conditions is not None:
        settings |= {"guidance": guidance, "prompt": prompt}
    made_by = json.dumps(settings)
    drawings = {one.file: one for one in _drawings(run, model, range(seed, seed + count), prompt)}
    metadata = "".join(one.line() for one in drawings.values())
    finished = run.folder / "generated"
    target = finished.resolve()  # another folder if generated/ is a link
    unfinished = target.with_name(f"{target.name}-unfinished")
    found = _pictures(finished) if _text(finished / MADE_BY) == made_by else set()
    reusable = {name for name in found & drawings.keys() if is_whole(finished / name, model.image_shape)}
    if found == reusable == drawings.keys() and _text(finished / METADATA) == metadata:
        return
    with alone_in(run.folder):
        _begin(unfinished, made_by)
        for name in _pictures(unfinished):
            if name not in drawings or not is_whole(unfinished / name, model.image_shape):
                (unfinished / name).unlink()
        for name in reusable:
            write_bytes(unfinished / name, (finished / name).read_bytes())
        _draw_missing(model, list(drawings.values()), steps, guidance, unfinished)
        write_text(unfinished / METADATA, metadata)
        _move_other_files(finished, unfinished)
        replace_folder(unfinished, finished)


def _begin(folder: Path, made_by: str) -> None:
    """Make the folder that collects pictures, or continue with it; pictures with other settings are removed."""
    found = _text(folder / MADE_BY)
    if found is None and folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not a folder that dtrak made: move it away, as pictures are collected there")
    if found != made_by:
        for path in folder.glob("*"):
            if WRITTEN_HERE.fullmatch(path.name):
                path.unlink()
    write_text(folder / MADE_BY, made_by)


def _pictures(folder: Path) -> set[str]:
    """Return the file names of the pictures that `generate` has drawn into a folder."""
    return {path.name for path in folder.glob("*.png") if WRITTEN_HERE.fullmatch(path.name)}


def _move_other_files(finished: Path, unfinished: Path) -> None:
    """Move files that someone else has put among the pictures, so that they stay with them."""
    for path in list(finished.glob("*")):
        if not WRITTEN_HERE.fullmatch(path.name):
            path.rename(unfinished / path.name)


def _drawings(run: Run, model: DiffusionModel, seeds: range, prompt: str | None) -> list[Drawing]:
    """Return the pictures of these seeds, with their prompts."""
    if model.conditions is None:
        if prompt is not None:
            raise UsageError(f"prompt {prompt!r}: {model.source} takes no prompts")
        return [Drawing(seed) for seed in seeds]
    given = run.generation.prompts if prompt is None else (prompt,)
    in_turn = given or sorted(set(model.conditions.texts(run.train_images)))
    return [Drawing(seed, in_turn[seed % len(in_turn)]) for seed in seeds]


def _draw_missing(
    model: DiffusionModel, drawings: Sequence[Drawing], steps: int, guidance: float | None, folder: Path
) -> None:
    """Draw the pictures that are not in the folder yet.

    A batch that lacks a picture is drawn as a whole: in another batch, a picture would differ by rounding.
    """
    batches = [drawings[start : start + BATCH] for start in range(0, len(drawings), BATCH)]
    missing = [batch for batch in batches if not all((folder / one.file).exists() for one in batch)]
    with progress_bar("generate", len(drawings), "pictures") as advance:
        advance(len(drawings) - sum(map(len, missing)))
        for batch in missing:
            prompts = [one.prompt or "" for one in batch]
            drawn = sample(model, [one.seed for one in batch], steps, prompts=prompts, guidance=guidance)
            for one, picture in zip(batch, to_pixels(drawn.pictures).numpy(), strict=True):
                write_bytes(folder / one.file, png(picture))
            advance(len(batch))


def _text(path: Path) -> str | None:
    """Read a text file; None if it is missing."""
    return path.read_text(errors="replace") if path.is_file() else None
