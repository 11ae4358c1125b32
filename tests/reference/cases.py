"""The questions that methods answer, as files that diffusers and numpy write: models of a few thousand parameters,
images of random pixels, and as queries pictures that the model drew."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import DDPMScheduler, UNet2DModel
from numpy.typing import NDArray

from reference.slow_gradients import Asked, ddim

FEW, MANY = "conv_norm_out", "conv_in|conv_norm_out|conv_out|time_embedding.linear_1"  # 8 and 165 parameters
PLAIN = ["random", "raw-pixel-dot", "raw-pixel-cosine", "clip-dot", "clip-cosine", "nda"]
LOSSES = ["empirical-influence", "datamodel", "datamodel-lasso"]
SIMILAR = ["gradient-dot", "gradient-cosine"]
TRAKS = ["trak", "d-trak", "mixed-trak", "step-trak"]
INFLUENCE = ["relative-if", "renormalized-if", "das", "journey-trak"]
SEVERAL = ["tracin", "gas", "retrac", "trak-ensemble", "d-trak-ensemble", "journey-trak-ensemble"]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "velocity": {"kind": "v_prediction", "levels": 2},
    "classes": {"classes": 3},
}

# The methods that answer a question, and its options; `model` and `images` choose files.
CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "more numbers than images": (
        [*PLAIN, *LOSSES, *SIMILAR, *TRAKS, *INFLUENCE, "ek-fac"],
        {"parameters": MANY, "damping": 0.1},
    ),
    "fewer numbers than images": (
        [*SIMILAR, *TRAKS, *INFLUENCE, *SEVERAL],
        {"parameters": FEW, "checkpoint_count": 2, "step": 400},
    ),
    "one number": ([*TRAKS, *INFLUENCE], {"parameters": "conv_out.bias"}),
    "forty images": (TRAKS, {"images": "forty", "objective": "avg", "parameters": MANY}),
    "every parameter": (["trak", "step-trak", "das"], {"model": "velocity", "damping": 0.5}),
    "four timesteps": (
        ["trak", "step-trak", "das", "ek-fac", "journey-trak", "nda"],
        {"timesteps": 4, "parameters": MANY, "damping": "absolute:0.01"},
    ),
    "two draws": (
        ["mixed-trak", "step-trak", "das", "ek-fac", "journey-trak", "nda"],
        {"draws": 2, "parameters": MANY, "damping": "spectrum"},
    ),
    "another seed": (["random", "nda", "trak", "step-trak"], {"seed": 5, "parameters": FEW, "damping": 0.01}),
    "the network predicts v": (["trak", "step-trak", "das", "journey-trak"], {"model": "velocity", "parameters": MANY}),
    "the network is told a class": (
        ["d-trak", "das", "ek-fac", "journey-trak"],
        {"model": "classes", "parameters": MANY},
    ),
    **{
        objective: (["d-trak", "step-trak"], {"objective": objective, "parameters": MANY, "timesteps": "400,900"})
        for objective in ("simple", "elbo", "avg", "l1", "l2", "linf", "interpolated(0.3)")  # L_Square is d-trak's
    },
}


def write_model(
    folder: Path, seed: int = 0, kind: str = "epsilon", levels: int = 1, classes: int | None = None
) -> None:
    """Convolutions, linear layers, group norms and attention; dropout that must stay off."""
    torch.manual_seed(seed)
    network = UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        block_out_channels=(4,) * levels,
        layers_per_block=1,
        down_block_types=("DownBlock2D",) * levels,
        up_block_types=("UpBlock2D",) * levels,
        attention_head_dim=2,
        norm_num_groups=2,
        dropout=0.5,
        num_class_embeds=classes,
    )
    network.save_pretrained(folder / "unet")
    DDPMScheduler(prediction_type=kind).save_pretrained(folder / "scheduler")


def write_files(folder: Path) -> None:
    """Models and images of every kind, three checkpoints, and a benchmark with two of its subsets' models."""
    random, seeds, labels = np.random.default_rng(0), np.array([7, 3, 11]), np.array([1, 0, 2])
    for kind, of_model in KINDS.items():
        write_model(folder / kind / "model", **of_model)
        asked = zip(seeds.tolist(), labels.tolist(), strict=True)
        drawn = torch.stack([ddim(folder / kind / "model", seed, 5, label)[0] for seed, label in asked])
        pixels = ((drawn + 1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()
        np.savez(folder / kind / "generated.npz", images=pixels, labels=labels, seed=seeds)
    for step in (2, 4, 10):
        write_model(folder / "checkpoints" / f"step-{step}", seed=step)
    for seed, name in enumerate(("subset-000-seed-0", "subset-003-seed-0", "subset-003-seed-1")):
        write_model(folder / "plain" / "retrained" / name, seed=20 + seed)
    for name, count in (("train", 12), ("forty", 40)):
        pixels = random.integers(0, 256, (count, 8, 8, 1), dtype=np.uint8)
        np.savez(folder / "plain" / f"{name}.npz", images=pixels, labels=np.arange(count) % 3)
    masks = random.random((16, 12)) < 0.5
    losses = 3 - masks[:, None] @ random.normal(size=(12, 3)) + random.normal(size=(16, 2, 3)) * [0.3, 1, 3]
    np.save(folder / "plain" / "masks.npy", masks)
    np.save(folder / "plain" / "generated_losses.npy", losses.astype(np.float32))


def question(folder: Path, model: str = "plain", images: str = "train", **options: Any) -> Asked:
    return Asked(
        folder / model / "model",
        folder / "plain" / f"{images}.npz",
        folder / model / "generated.npz",
        folder / "checkpoints",
        folder / "plain",
        **options,
    )


def every_second_pixel(name: str, device: str) -> Any:
    """An image encoder, as users write one."""

    def encode(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        return pixels[:, ::2, ::2].reshape(len(pixels), -1).astype(np.float32) / 127.5 - 1

    return encode
