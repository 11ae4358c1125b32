"""Draw pictures with DDIM: from x_T ~ N(0, I) down to x_0 in a few dozen steps, the same for the same seed.

Each picture has a seed of its own, so that any one of them can be drawn again alone.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dtrak.errors import DtrakError
from dtrak.files import make_folder, write_bytes, write_text
from dtrak.models import DiffusionModel
from dtrak.noise import gaussian
from dtrak.pictures import png
from dtrak.progress import progress_bar
from dtrak.runs import Run

BATCH = 30


@dataclass(frozen=True, eq=False)
class Samples:
    pictures: Tensor  # x_0 [B, C, H, W] in [−1, 1]
    trajectory: Tensor | None  # x_t before each step, then x_0: [steps + 1, B, C, H, W]
    timesteps: Tensor  # t of each step [steps], falling


@torch.no_grad()
def sample(model: DiffusionModel, seeds: Sequence[int], steps: int = 50, trajectory: bool = False) -> Samples:
    """One picture for each seed; with `trajectory`, every x_t on the way as well."""
    model.network.eval()
    solver = model.ddim(steps)
    x = torch.stack([gaussian(model.shape, seed, "x_T") for seed in seeds]).to(model.device)
    path = [x]
    for t in solver.timesteps:
        x = solver.step(model.predict(x, t.to(model.device).expand(len(x))), t, x).prev_sample
        if not x.isfinite().all():
            bad = seeds[int((~x.isfinite()).flatten(1).any(1).nonzero()[0])]
            raise DtrakError(f"the model's output is not finite for the picture with seed {bad} at timestep {int(t)}")
        if trajectory:
            path.append(x)
    return Samples(x.clamp(-1, 1), torch.stack(path) if trajectory else None, solver.timesteps)


def to_pixels(pictures: Tensor) -> Tensor:
    """uint8 [B, H, W, C] from [B, C, H, W] in [−1, 1]."""
    return ((pictures + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).cpu()


def generate(run: Run, model: DiffusionModel, count: int, seed: int, steps: int) -> None:
    """Fill generated/ with the pictures of the seeds `seed` … `seed + count − 1`; those that are there stay.

    The folder then holds these and no others, with their seeds in metadata.jsonl.
    """
    folder = make_folder(run.folder / "generated")
    made_by = json.dumps({"model": model.fingerprint, "steps": steps})
    origin = folder / "made-by.json"
    names = {f"seed-{one:05d}.png": one for one in range(seed, seed + count)}
    reusable = origin.exists() and origin.read_text() == made_by
    (folder / "metadata.jsonl").unlink(missing_ok=True)
    for path in folder.glob("seed-*.png"):
        if not reusable or path.name not in names:
            path.unlink()
    write_text(origin, made_by)
    missing = [name for name in names if not (folder / name).exists()]
    with progress_bar("generate", count, "pictures") as advance:
        advance(count - len(missing))
        for start in range(0, len(missing), BATCH):
            batch = missing[start : start + BATCH]
            pixels = to_pixels(sample(model, [names[name] for name in batch], steps).pictures).numpy()
            for name, picture in zip(batch, pixels, strict=True):
                write_bytes(folder / name, png(picture))
            advance(len(batch))
    write_text(
        folder / "metadata.jsonl",
        "".join(json.dumps({"file_name": name, "seed": one}) + "\n" for name, one in names.items()),
    )
