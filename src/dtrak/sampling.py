"""Draw pictures: from x_T ~ N(0, I) down to x_0 in a few dozen steps of DDIM, the same for the same seed.

Each picture has a seed of its own, so that any one of them can be drawn again alone.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dtrak.errors import DtrakError, UsageError
from dtrak.files import alone_in, clear_leftovers, replace_folder, write_bytes, write_text
from dtrak.models import DiffusionModel
from dtrak.models.text_encoders import Condition
from dtrak.models.views import repeated
from dtrak.noise import gaussian
from dtrak.pictures import png
from dtrak.progress import progress_bar, steps_of
from dtrak.runs import Run

BATCH = 30
MADE_BY, METADATA = "made-by.json", "metadata.jsonl"
OURS = re.compile(r"seed-\d{5,}\.png|made-by\.json|metadata\.jsonl")  # what `generate` writes


@dataclass(frozen=True, eq=False)
class Samples:
    pictures: Tensor  # [B, C, H, W] in [−1, 1]
    trajectory: Tensor | None  # x_t before each step, then x_0: [steps + 1, B, C, H, W], latents of latent models
    estimates: Tensor | None  # x̂_0, what each step took x_t for: [steps, B, C, H, W]
    timesteps: Tensor  # t of each step [steps], falling


def sample(
    model: DiffusionModel,
    seeds: Sequence[int],
    steps: int = 50,
    trajectory: bool = False,
    prompts: Sequence[str] | None = None,
    guidance: float | None = None,
) -> Samples:
    """One picture for each seed, and prompt; with `trajectory`, every x_t and x̂_0 on the way as well.

    Guidance g follows the prompt c further than the model would by itself: ε_θ(x) + g (ε_θ(x, c) − ε_θ(x)).
    """
    told = prompts or [""] * len(seeds)
    batches = [slice(start, start + BATCH) for start in range(0, len(seeds), BATCH)]
    parts = [_batch(model, seeds[rows], steps, trajectory, told[rows], guidance) for rows in batches]
    paths = [part.trajectory for part in parts if part.trajectory is not None]
    estimates = [part.estimates for part in parts if part.estimates is not None]
    return Samples(
        torch.cat([part.pictures for part in parts]),
        torch.cat(paths, dim=1) if paths else None,
        torch.cat(estimates, dim=1) if estimates else None,
        model.solver(steps).timesteps,
    )


@torch.no_grad()
def _batch(
    model: DiffusionModel,
    seeds: Sequence[int],
    steps: int,
    trajectory: bool,
    prompts: Sequence[str],
    guidance: float | None,
) -> Samples:
    model.network.eval()
    solver = model.solver(steps)
    x = torch.stack([gaussian(model.shape, seed, "x_T") for seed in seeds]).to(model.device)
    told, untold = _conditions(model, prompts, guidance)
    path, estimates = [x], []
    for t in steps_of("draw", list(solver.timesteps), "steps"):
        timesteps = t.to(model.device).expand(len(x))
        answer = model.predict(x, timesteps, told)
        if untold is not None and guidance is not None:
            without = model.predict(x, timesteps, untold)
            answer = without + guidance * (answer - without)
        step = solver.step(answer, t, x)
        x = step.prev_sample
        if not x.isfinite().all():
            bad = seeds[int((~x.isfinite()).flatten(1).any(1).nonzero()[0])]
            raise DtrakError(f"the model's output is not finite for the picture with seed {bad} at timestep {int(t)}")
        if trajectory:
            path.append(x)
            estimates.append(step.pred_original_sample)
    return Samples(
        model.decode(x),
        torch.stack(path) if trajectory else None,
        torch.stack(estimates) if trajectory else None,
        solver.timesteps,
    )


def _conditions(
    model: DiffusionModel, prompts: Sequence[str], guidance: float | None
) -> tuple[Condition, Condition | None]:
    """What the model is told with the prompts, and without, if that is wanted for guidance."""
    if model.prompts is None:
        return {}, None
    told = model.prompts.encoder(prompts)
    return told, None if guidance in (None, 1.0) else repeated(model.prompts.encoder([""]), len(prompts))


def to_pixels(pictures: Tensor) -> Tensor:
    """uint8 [B, H, W, C] from [B, C, H, W] in [−1, 1]."""
    return ((pictures + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).cpu()


@dataclass(frozen=True)
class Drawing:
    """What a picture is drawn from."""

    seed: int
    prompt: str | None = None

    @property
    def file(self) -> str:
        return f"seed-{self.seed:05d}.png"

    def line(self) -> str:
        """Of the metadata."""
        about = {"file_name": self.file, "seed": self.seed} | ({} if self.prompt is None else {"prompt": self.prompt})
        return json.dumps(about, ensure_ascii=False) + "\n"


def generate(run: Run, model: DiffusionModel, count: int, seed: int, steps: int, prompt: str | None = None) -> None:
    """Draw the pictures of the seeds `seed` … `seed + count − 1`; generated/ then holds these and no others.

    Where the model takes prompts, they are all of `prompt`, or take turns with the prompts of the training images. They
    are gathered in a folder beside it, which outlives a kill and takes its place when complete. What the same model has
    drawn before, in as many steps, is not drawn again.
    """
    settings: dict[str, Any] = {"model": model.fingerprint, "steps": steps}
    guidance = run.recipe.generation.guidance
    if model.prompts is not None:
        settings |= {"guidance": guidance, "prompt": prompt}
    made_by = json.dumps(settings)
    drawings = {one.file: one for one in _drawings(run, model, range(seed, seed + count), prompt)}
    metadata = "".join(one.line() for one in drawings.values())
    finished = run.folder / "generated"
    gathered = finished.resolve()  # elsewhere if it is a link
    unfinished = gathered.with_name(f"{gathered.name}-unfinished")
    earlier = _pictures(finished) if _text(finished / MADE_BY) == made_by else set()
    if earlier == drawings.keys() and _text(finished / METADATA) == metadata:
        return
    with alone_in(run.folder):
        clear_leftovers(gathered.parent, gathered.name)
        clear_leftovers(unfinished)
        _begin(unfinished, made_by)
        for name in _pictures(unfinished) - drawings.keys():
            (unfinished / name).unlink()
        for name in earlier & drawings.keys():
            write_bytes(unfinished / name, (finished / name).read_bytes())
        _draw_missing(model, list(drawings.values()), steps, guidance, unfinished)
        write_text(unfinished / METADATA, metadata)
        _move_what_is_not_ours(finished, unfinished)
        replace_folder(unfinished, finished)


def _begin(folder: Path, made_by: str) -> None:
    """Make the folder that gathers pictures, or go on with it; those that were made otherwise go."""
    there = _text(folder / MADE_BY)
    if there is None and folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not a folder that dtrak made: move it away, pictures are gathered there")
    if there != made_by:
        for path in folder.glob("*"):
            if OURS.fullmatch(path.name):
                path.unlink()
    write_text(folder / MADE_BY, made_by)


def _pictures(folder: Path) -> set[str]:
    """The names of those that `generate` has drawn."""
    return {path.name for path in folder.glob("*.png") if OURS.fullmatch(path.name)}


def _move_what_is_not_ours(finished: Path, unfinished: Path) -> None:
    """What someone has put among the pictures stays with them."""
    for path in list(finished.glob("*")):
        if not OURS.fullmatch(path.name):
            path.rename(unfinished / path.name)


def _drawings(run: Run, model: DiffusionModel, seeds: range, prompt: str | None) -> list[Drawing]:
    if model.prompts is None:
        if prompt is not None:
            raise UsageError(f"prompt {prompt!r}: {model.source} takes no prompts")
        return [Drawing(seed) for seed in seeds]
    in_turn = [prompt] if prompt is not None else sorted(set(model.prompts.of(run.train_images)))
    return [Drawing(seed, in_turn[seed % len(in_turn)]) for seed in seeds]


def _draw_missing(
    model: DiffusionModel, drawings: Sequence[Drawing], steps: int, guidance: float | None, folder: Path
) -> None:
    """Draw those of the pictures that are not in the folder yet.

    A batch that lacks one is drawn whole: in other company a picture would differ by rounding.
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
    return path.read_text() if path.exists() else None
