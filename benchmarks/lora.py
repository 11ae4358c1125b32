"""Memory and time of features with respect to a LoRA, beside a training step, on a U-Net of Stable Diffusion 1.

    python benchmarks/lora.py               # 860 M parameters, 25.5 M of LoRA at rank 128, latents of 256×256
    python benchmarks/lora.py --side 64     # of 512×512
    python benchmarks/lora.py --small       # a U-Net of 2 M
    python benchmarks/lora.py --side 64 --plan 5000    # only count the operations for 5,000 images

The weights are random: neither memory nor time depends on them. Every row is a process of its own, whose peak is what
the system says of it. A training step sees as many latents as a feature has noised copies.
"""

import argparse
import json
import platform
import resource
import shlex
import subprocess
import sys
import time
from datetime import date
from importlib.metadata import version

import numpy as np
import torch
from diffusers import DDPMScheduler, UNet2DConditionModel
from peft import LoraConfig
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from dtrak.engines import cores
from dtrak.features.model_inputs import ModelInputs
from dtrak.gradients.copies import Copies
from dtrak.gradients.featurizer import Featurizer
from dtrak.gradients.objectives import square
from dtrak.gradients.projections import make_projection
from dtrak.images.images import load_images
from dtrak.models import DiffusionModel
from dtrak.models.memory import FusedAttention
from dtrak.noise import gaussian
from dtrak.runs.recipes import Training
from dtrak.runs.training import Trainer

ROWS = {"weights": "the U-Net and its LoRA", "training": "one training step", "features": "features of an image"}
SMALL = {"block_out_channels": (32, 64, 64, 64), "norm_num_groups": 8, "layers_per_block": 1, "cross_attention_dim": 64}
SPEEDS = (5e12, 20e12, 80e12)  # that a GPU may reach in practice, from an old one to a large one in bfloat16
TARGETS = ["to_q", "to_k", "to_v", "to_out.0"]


def make_model(args: argparse.Namespace) -> DiffusionModel:
    """diffusers' defaults are those of Stable Diffusion 1 but for two."""
    config = {"cross_attention_dim": 768, "attention_head_dim": 8} | (SMALL if args.small else {})
    network = UNet2DConditionModel(sample_size=args.side, **config).requires_grad_(False)
    network.add_adapter(LoraConfig(r=args.rank, lora_alpha=args.rank, lora_dropout=0.1, target_modules=TARGETS))
    scheduler = DDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    return DiffusionModel(network.eval(), scheduler, (4, args.side, args.side))


def make_view(model: DiffusionModel, count: int) -> ModelInputs:
    """Random latents, all with the same random words."""
    moments = gaussian((count, 2, *model.shape), "latents").abs()
    words = gaussian((1, 77, model.network.config.cross_attention_dim), "words")
    which = np.zeros(count, dtype=np.int64)
    conditions = {"encoder_hidden_states": words}
    return ModelInputs(
        load_images("digits:train").select(range(count)), (moments,), ["words"] * count, conditions, which
    )


def measure(row: str, args: argparse.Namespace) -> dict[str, float]:
    model = make_model(args)
    view = make_view(model, args.copies)
    seconds = 0.0
    if row == "training":
        trainer = Trainer(model, view, Training(epochs=2, batch_size=args.copies))
        started = time.perf_counter()
        trainer.take_step()
        seconds = time.perf_counter() - started
    elif row == "features":
        timesteps = tuple(range(0, 1000, 1000 // args.copies))[: args.copies]
        parameters = model.parameters()
        shapes = {name: tuple(value.shape) for name, value in parameters.items()}
        projection = make_projection("sketch", args.dim, shapes, 0)
        condition = view.condition([0])
        features = Featurizer(
            model,
            [square],
            Copies(timesteps),
            projection,
            parameters,
            condition=condition,
            batch_size=1,
        )
        started = time.perf_counter()
        features(view.tensor([0]), [0], condition)
        seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    every, trained = (
        sum(value.numel() for value in found.values()) for found in (model.parameters("all"), model.parameters())
    )
    return {"seconds": seconds, "peak": peak, "parameters": every - trained, "trained": trained}


def plan(args: argparse.Namespace) -> Table:
    """Count the operations of features with ten noised copies an image, and what they take at some speeds."""
    copies = 10
    with torch.device("meta"), FusedAttention(), FlopCounterMode(display=False) as counter:
        model = make_model(args)
        condition = torch.zeros(1, 77, model.network.config.cross_attention_dim)
        model.network(torch.zeros(1, *model.shape), torch.zeros(1, dtype=torch.long), condition).sample.sum().backward()
    each = counter.get_total_flops()
    total = each * copies * args.plan
    table = Table(title=f"{args.plan:,} images, {copies} copies each: {total / 1e15:,.0f} · 10¹⁵ operations")
    for title in ("operations a second", "hours"):
        table.add_column(title, justify="right")
    for speed in SPEEDS:
        table.add_row(f"{speed / 1e12:,.0f} · 10¹²", f"{total / speed / 3600:,.1f}")
    stored = 4 * args.plan * copies * 4096
    table.caption = f"{each / 1e12:.2f} · 10¹² for each copy, forward and backward; {stored / 1e9:.1f} GB of features"
    return table


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=32, help="of the latents (default: 32)")
    parser.add_argument("--copies", type=int, default=4, help="noised copies, and latents in a step (default: 4)")
    parser.add_argument("--rank", type=int, default=128)
    parser.add_argument("--dim", type=int, default=32768, help="numbers kept of a gradient (default: 32768)")
    parser.add_argument("--small", action="store_true", help="a U-Net of 2 M parameters")
    parser.add_argument("--plan", type=int, metavar="N", help="only count the operations for N images")
    parser.add_argument("--row", choices=ROWS, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = parse()
    torch.manual_seed(0)
    if args.row:
        print(json.dumps(measure(args.row, args)))
        return
    if args.plan:
        Console().print(plan(args))
        return
    found = {}
    for row in ROWS:
        print(f"{ROWS[row]} …", file=sys.stderr)
        command = [sys.executable, __file__, *sys.argv[1:], "--row", row]
        found[row] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    one = found["weights"]
    table = Table(title=f"{one['parameters'] / 1e6:,.1f} M parameters, {one['trained'] / 1e6:,.1f} M of LoRA")
    for title in ("", "peak, GB", "beyond the weights, GB", "seconds"):
        table.add_column(title, justify="right" if title else "left")
    for row, label in ROWS.items():
        peak, seconds = found[row]["peak"] / 1e9, found[row]["seconds"]
        beyond = f"{peak - one['peak'] / 1e9:.2f}" if row != "weights" else ""
        table.add_row(label, f"{peak:.2f}", beyond, f"{seconds:.1f}" if seconds else "")
    print(f"`{shlex.join(['python', 'benchmarks/lora.py', *sys.argv[1:]])}`")
    packages = ", ".join(f"{name} {version(name)}" for name in ("dtrak", "torch", "diffusers", "peft"))
    print(f"{date.today()}, {cores()} cores, Python {platform.python_version()}, {packages}")
    Console().print(table)


if __name__ == "__main__":
    main()
