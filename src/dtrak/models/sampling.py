"""Draw pictures from noise x_T to x_0 in a few dozen steps of DDIM or of Euler's solver.

The same seed gives the same picture. Each picture has its own seed, so that any one of them can be drawn again alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dtrak.errors import DtrakError, UsageError
from dtrak.models.conditions import Condition, moved, repeated
from dtrak.models.diffusion import DiffusionModel
from dtrak.noise import gaussian
from dtrak.progress import steps_of

BATCH = 30
GUIDANCE = "guidance"  # the condition of networks that were distilled from guided ones


@dataclass(frozen=True, eq=False)
class Samples:
    """Pictures, and how they were drawn."""

    pictures: Tensor  # [B, C, H, W] in [−1, 1]
    estimates: Tensor | None  # x̂_0, the image that each step estimates from x_t: [steps, B, C, H, W]; or latents
    timesteps: Tensor  # t of each step [steps], falling


@torch.no_grad()
def sample(
    model: DiffusionModel,
    seeds: Sequence[int],
    steps: int = 50,
    trajectory: bool = False,
    prompts: Sequence[str] | None = None,
    guidance: float | None = None,
) -> Samples:
    """Draw a picture for each seed and its prompt or class; with `trajectory`, keep the estimate x̂_0 of each step.

    Guidance g makes pictures follow the prompt c more closely: ε_θ(x) + g (ε_θ(x, c) − ε_θ(x)). A network that was
    distilled from guided ones takes g itself, as its condition `guidance`.
    """
    if prompts is None and model.conditions is not None and model.prompts is None:
        raise UsageError(f"{model.source} draws pictures of a class: give the class of each as its prompt")
    model.network.eval()
    solver, texts = model.solver(steps), prompts or [""] * len(seeds)
    pictures: list[Tensor] = []
    estimates: list[Tensor] = []
    for batch in (slice(start, start + BATCH) for start in range(0, len(seeds), BATCH)):
        noise = torch.stack([gaussian(model.shape, seed, "x_T") for seed in seeds[batch]])
        x = float(solver.init_noise_sigma) * noise.to(model.device)
        condition, unconditional = _conditions(model, texts[batch], guidance)
        estimated = []
        for t in steps_of("draw", list(solver.timesteps), "steps"):
            timesteps = t.to(model.device).expand(len(x))
            prediction = model.predict(x, timesteps, condition).float()
            if unconditional is not None and guidance is not None:
                without = model.predict(x, timesteps, unconditional).float()
                prediction = without + guidance * (prediction - without)
            step = solver.step(prediction, t, x)
            x = step.prev_sample
            if not x.isfinite().all():
                bad = seeds[batch][int((~x.isfinite()).flatten(1).any(1).nonzero()[0])]
                raise DtrakError(
                    f"the model's output is not finite for the picture with seed {bad} at timestep {int(t)}"
                )
            if trajectory:
                estimated.append(step.pred_original_sample)
        pictures.append(model.decode(x))
        estimates += [torch.stack(estimated)] if trajectory else []
    return Samples(torch.cat(pictures), torch.cat(estimates, dim=1) if trajectory else None, solver.timesteps)


def _conditions(
    model: DiffusionModel, prompts: Sequence[str], guidance: float | None
) -> tuple[Condition, Condition | None]:
    """Return the condition of the prompts, and the one without information if guidance needs it."""
    if model.conditions is None:
        return {}, None
    condition = moved(model.conditions.encode(prompts), model.device)
    if guidance is None or guidance == 1.0:
        return condition, None
    if GUIDANCE in condition:
        return {**condition, GUIDANCE: torch.full_like(condition[GUIDANCE], guidance)}, None
    return condition, moved(repeated(model.conditions.without(), len(prompts)), model.device)


def to_pixels(pictures: Tensor) -> Tensor:
    """Turn pictures [B, C, H, W] in [−1, 1] into pixels, uint8 [B, H, W, C]."""
    return ((pictures + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).cpu()
