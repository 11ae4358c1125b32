"""Draw pictures with DDIM: from x_T ~ N(0, I) down to x_0 in a few dozen steps, the same for the same seed.

Each picture has a seed of its own, so that any one of them can be drawn again alone.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dtrak.errors import DtrakError
from dtrak.files import alone_in, clear_leftovers, replace_folder, write_bytes, write_text
from dtrak.models import DiffusionModel
from dtrak.noise import gaussian
from dtrak.pictures import png
from dtrak.progress import progress_bar, steps_of
from dtrak.runs import Run

BATCH = 30
MADE_BY, METADATA = "made-by.json", "metadata.jsonl"


@dataclass(frozen=True, eq=False)
class Samples:
    pictures: Tensor  # x_0 [B, C, H, W] in [−1, 1]
    trajectory: Tensor | None  # x_t before each step, then x_0: [steps + 1, B, C, H, W]
    estimates: Tensor | None  # x̂_0, what each step took x_t for: [steps, B, C, H, W]
    timesteps: Tensor  # t of each step [steps], falling


@torch.no_grad()
def sample(model: DiffusionModel, seeds: Sequence[int], steps: int = 50, trajectory: bool = False) -> Samples:
    """One picture for each seed; with `trajectory`, every x_t and x̂_0 on the way as well."""
    model.network.eval()
    solver = model.ddim(steps)
    x = torch.stack([gaussian(model.shape, seed, "x_T") for seed in seeds]).to(model.device)
    path, estimates = [x], []
    for t in steps_of("draw", solver.timesteps, "steps"):
        step = solver.step(model.predict(x, t.to(model.device).expand(len(x))), t, x)
        x = step.prev_sample
        if not x.isfinite().all():
            bad = seeds[int((~x.isfinite()).flatten(1).any(1).nonzero()[0])]
            raise DtrakError(f"the model's output is not finite for the picture with seed {bad} at timestep {int(t)}")
        if trajectory:
            path.append(x)
            estimates.append(step.pred_original_sample)
    return Samples(
        x.clamp(-1, 1),
        torch.stack(path) if trajectory else None,
        torch.stack(estimates) if trajectory else None,
        solver.timesteps,
    )


def to_pixels(pictures: Tensor) -> Tensor:
    """uint8 [B, H, W, C] from [B, C, H, W] in [−1, 1]."""
    return ((pictures + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).cpu()


def generate(run: Run, model: DiffusionModel, count: int, seed: int, steps: int) -> None:
    """Draw the pictures of the seeds `seed` … `seed + count − 1`; generated/ then holds these and no others.

    They are gathered in a folder beside it, which outlives a kill and takes its place when complete. What the same
    model has drawn before, in as many steps, is not drawn again.
    """
    made_by = json.dumps({"model": model.fingerprint, "steps": steps})
    seeds = {f"seed-{one:05d}.png": one for one in range(seed, seed + count)}
    metadata = "".join(json.dumps({"file_name": name, "seed": one}) + "\n" for name, one in seeds.items())
    finished, unfinished = run.folder / "generated", run.folder / "generated-unfinished"
    earlier = {path.name for path in finished.glob("*.png")} if _text(finished / MADE_BY) == made_by else set()
    if earlier == seeds.keys() and _text(finished / METADATA) == metadata:
        return
    with alone_in(run.folder):
        clear_leftovers(run.folder, finished.name)
        clear_leftovers(unfinished)
        if _text(unfinished / MADE_BY) != made_by:
            shutil.rmtree(unfinished, ignore_errors=True)
        write_text(unfinished / MADE_BY, made_by)
        for path in unfinished.glob("*.png"):
            if path.name not in seeds:
                path.unlink()
        for name in earlier & seeds.keys():
            write_bytes(unfinished / name, (finished / name).read_bytes())
        _draw_missing(model, seeds, steps, unfinished)
        write_text(unfinished / METADATA, metadata)
        replace_folder(unfinished, finished)


def _draw_missing(model: DiffusionModel, seeds: dict[str, int], steps: int, folder: Path) -> None:
    """Draw those of the pictures `seeds`, by file name, that are not in the folder yet.

    A batch that lacks one is drawn whole: in other company a picture would differ by rounding.
    """
    batches = [list(seeds)[start : start + BATCH] for start in range(0, len(seeds), BATCH)]
    missing = [batch for batch in batches if not all((folder / name).exists() for name in batch)]
    with progress_bar("generate", len(seeds), "pictures") as advance:
        advance(len(seeds) - sum(map(len, missing)))
        for batch in missing:
            pixels = to_pixels(sample(model, [seeds[name] for name in batch], steps).pictures).numpy()
            for name, picture in zip(batch, pixels, strict=True):
                write_bytes(folder / name, png(picture))
            advance(len(batch))


def _text(path: Path) -> str | None:
    return path.read_text() if path.exists() else None
