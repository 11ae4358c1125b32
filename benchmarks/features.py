"""What a feature costs: dtrak, the paper's code, traker and dattri beside a plain forward and backward pass.

    python benchmarks/features.py                        # two U-Nets, about 25 minutes on two cores
    python benchmarks/features.py --model a --rows ours  # some of it
    python benchmarks/features.py --scaling              # time and memory as the number of images grows
    python benchmarks/features.py --check                # do all of them compute the same gradient?

Random weights and images, K = 10 timesteps, the objective `square`, float32. The floor, 1.0, is network(noisy, t), mean
square and backward over the same noised copies: no image gets its own gradient there, nothing is projected or written.
Below it are the forward pass and the backward pass to activations alone, which is all that factored features need.
dtrak is timed from the .npz file to the finished store, set-up included. Each row runs in processes of its own. The
floor and dtrak take turns for several rounds, after a warm-up, and the quickest counts. What would take a peer hours
is run on a slice and scaled: the cost of vmap is linear in timesteps, that of a dense projection in d and in k.
Memory is the process's peak beyond what it held once the model was loaded.
"""

import argparse
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import time
import warnings
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from cells import markdown, show, times

# torch is imported by the processes that measure alone: the peak of a process starts from that of its parent.
if TYPE_CHECKING:
    from dtrak.models import DiffusionModel

K = 10
DIMS = (4096, 32768)
COPIES_DIM = 4700  # `factored` fills a part of it: with this, a copy has more than 4,096 numbers in every row
SCALES = (100, 1000, 4000)
OURS: dict[str, tuple[str, dict[str, Any]]] = {  # the settings of dtrak's rows
    "ours-4096": ("dtrak, k = 4096", {"projection_dim": 4096}),
    "ours-copies": ("dtrak, every copy, as step-trak has it", {"projection_dim": COPIES_DIM}),
    "ours-copies-all": ("dtrak, every copy, all layers", {"projection_dim": COPIES_DIM, "layers": "all"}),
    "ours-32768": ("dtrak, k = 32768", {"projection_dim": 32768}),
    "ours-up": ("dtrak, up_blocks only, k = 4096", {"projection_dim": 4096, "layers": r"^up_blocks\."}),
    "ours-out": ("dtrak, conv_out only, not projected", {"projection": "identity", "layers": r"^conv_out\."}),
}
PASSES = {
    "floor": "plain forward + backward",
    "activations": "forward + backward to activations alone",
    "forward": "forward alone",
}
PEER_LABELS = {"paper": "the paper's code", "traker": "traker", "dattri": "dattri"}
ROWS = (*OURS, *PEER_LABELS)
PEER_NOTES = {
    "paper": "vmap per timestep, then traker's projector",
    "traker": "vmap over all copies, its store",
    "dattri": "vmap over all copies, features stay in memory",
}


@dataclass(frozen=True)
class Setting:
    """A model, and how much of the work is run on it."""

    title: str
    unet: dict[str, Any]
    shape: tuple[int, int, int]
    images: int
    floor_batches: tuple[int, ...] = ()  # noised copies in a pass
    slices: dict[str, dict[str, int]] = field(default_factory=dict)  # peers.Slice for the peers


TINY = Setting(
    title="U-Net of 0.18 M parameters, 8×8",
    unet={
        "block_out_channels": (16, 32),
        "layers_per_block": 1,
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        "attention_head_dim": 8,
        "norm_num_groups": 8,
    },
    shape=(1, 8, 8),
    images=2,
)
SETTINGS = {
    "a": Setting(
        title="U-Net of 1.1 M parameters, 32×32",
        unet={
            "block_out_channels": (32, 64, 64),
            "layers_per_block": 1,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
            "attention_head_dim": 8,
            "norm_num_groups": 8,
        },
        shape=(3, 32, 32),
        images=32,
        floor_batches=(10, 20, 40),
        slices={
            "paper": {"images": 16, "columns": 400},
            "traker": {"images": 8, "columns": 400},  # all copies of 8 images at once: gigabytes
            "dattri": {"images": 8, "columns": 400},
        },
    ),
    "b": Setting(
        title="the paper's U-Net of 35.7 M parameters, 32×32",
        unet={
            "block_out_channels": (128, 256, 256, 256),
            "layers_per_block": 2,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
            "attention_head_dim": None,
        },
        shape=(3, 32, 32),
        images=6,
        floor_batches=(5, 10, 20),
        slices={
            # Unsliced, the block of the matrix takes 14 GB and all copies of an image 2 GB: batches cannot be large.
            "paper": {"images": 4, "timesteps": 2, "rows": 16, "columns": 200},
            "traker": {"images": 2, "rows": 16, "columns": 200, "repeats": 1},
            "dattri": {"images": 2, "rows": 16, "columns": 200, "repeats": 1},
        },
    ),
}


@dataclass(frozen=True)
class Result:
    """One row of a table."""

    label: str
    seconds: float | None = None  # per image
    projection: float = 0.0  # the part of `seconds` that goes into a dense projection
    peak: int = 0  # bytes
    note: str = ""


# ---------------------------------------------------------------- in a process of its own


def measure(row: str, setting: Setting, threads: int) -> list[Result]:
    """Run one row here and now."""
    import torch
    from peers import PEERS

    warnings.filterwarnings("ignore")  # vmap's, for operations without a batching rule
    torch.set_num_threads(threads)
    model = make_model(setting)
    before = resident_bytes()
    with TemporaryDirectory() as folder:
        images = write_images(Path(folder, "images.npz"), setting)
        if row in PEERS:
            results = peer(row, model, images, setting)
        elif row.partition("-")[0] in PASSES:
            passes, _, batch = row.partition("-")
            results = [plain(model, images, passes, int(batch))]
        else:
            results = [ours(row, model, images, Path(folder))]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    return [replace(result, peak=max(peak, result.peak)) for result in results]


def make_model(setting: Setting) -> "DiffusionModel":
    import torch
    from diffusers import DDPMScheduler, UNet2DModel

    from dtrak.models import DiffusionModel

    torch.manual_seed(0)
    channels, size, _ = setting.shape
    network = UNet2DModel(sample_size=size, in_channels=channels, out_channels=channels, **setting.unet)
    return DiffusionModel(network.eval(), DDPMScheduler(), setting.shape)


def write_images(path: Path, setting: Setting) -> Path:
    import numpy as np

    channels, height, width = setting.shape
    pixels = np.random.default_rng(0).integers(256, size=(setting.images, height, width, channels), dtype=np.uint8)
    np.savez(path, images=pixels)
    return path


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def plain(model: "DiffusionModel", images: Path, passes: str, batch: int) -> Result:
    """Plain passes over all noised copies, `batch` of them at a time: what nothing that needs them can go below."""
    import torch
    from peers import all_copies

    from dtrak.images.images import load_images

    copies, loaded = all_copies(model, K), load_images(str(images))
    clean = loaded.tensor(range(len(loaded))).repeat_interleave(K, 0)
    timesteps = torch.tensor(copies.timesteps).repeat(len(loaded))
    noisy = model.process.add_noise(clean, copies.noises(model.shape, None).repeat(len(loaded), 1, 1, 1), timesteps)

    model.network.requires_grad_(passes == "floor")
    noisy.requires_grad_(passes == "activations")

    def step(part: slice) -> None:
        with torch.set_grad_enabled(passes != "forward"):
            loss = model.network(noisy[part], timesteps[part]).sample.square().mean()
        if passes != "forward":
            loss.backward()
        model.network.zero_grad()

    step(slice(batch))  # the warm-up
    start = time.perf_counter()
    for first in range(0, len(noisy), batch):
        step(slice(first, first + batch))
    return Result(f"{passes}-{batch}", (time.perf_counter() - start) / len(loaded))


def ours(row: str, model: "DiffusionModel", images: Path, folder: Path) -> Result:
    """dtrak from the file of images to the finished store; `scale` is its first row over many images."""
    from dtrak.features.featurizing import featurize
    from dtrak.features.model_inputs import model_inputs
    from dtrak.features.spec import Spec
    from dtrak.gradients.objectives import square
    from dtrak.images.images import load_images

    label, settings = OURS["ours-4096" if row == "scale" else row]
    apart, wanted = row.startswith("ours-copies"), {"square": square}
    usual = {"copies": "apart", "timesteps": f"visible:{K}", "layers": "later", "projection": "factored"}
    spec = Spec(**{"timesteps": f"uniform:{K}", **(usual if apart else {}), **settings})
    first = model_inputs(model, load_images(str(images)).select([0]))
    featurize(model, first, spec, wanted, {"square": (folder / "warm-up", {})})
    start = time.perf_counter()
    inputs = model_inputs(model, load_images(str(images)))
    store = featurize(model, inputs, spec, wanted, {"square": (folder / "timed", {})})["square"]
    seconds, each = time.perf_counter() - start, "a copy" if apart else "an image"
    return Result(label, seconds / len(store), note=f"{store.dim:,} numbers {each}, on disk")


def peer(row: str, model: "DiffusionModel", images: Path, setting: Setting) -> list[Result]:
    """One result for each k, from the cost of a slice."""
    from peers import BLOCK, PEERS, Slice, all_copies

    from dtrak.images.images import load_images

    part = Slice(**setting.slices[row])
    clean = load_images(str(images)).tensor(range(min(part.images, setting.images)))
    cost = PEERS[row](model, clean, all_copies(model, K), part)
    sliced = [f"{part.columns} columns"]
    sliced += [f"1/{part.rows} of d"] * (part.rows > 1) + [f"{part.timesteps} timesteps"] * (part.timesteps < K)
    note = f"{PEER_NOTES[row]}; batches of {len(clean)}; scaled from {', '.join(sliced)}"
    least = 0
    if part.rows > 1:
        # A whole block of the matrix and the gradients would be there at the same time, whatever else is.
        least = 4 * model.network.num_parameters() * (BLOCK + len(clean))
        note += "; memory computed, at least"
    notes = [note] + ["as above"] * (len(DIMS) - 1)
    return [
        Result(f"{PEER_LABELS[row]}, k = {k}", cost.gradient + cost.projection(k), cost.projection(k), least, note)
        for k, note in zip(DIMS, notes, strict=True)
    ]


# ---------------------------------------------------------------- in the process that the user starts


def run(row: str, model: str, setting: Setting, threads: int) -> list[Result]:
    """Measure one row in a child process; what goes wrong there becomes a row as well."""
    options = ["--model", model, "--images", str(setting.images), "--threads", str(threads)]
    start = time.perf_counter()
    done = subprocess.run([sys.executable, __file__, "--row", row, *options], capture_output=True, text=True)
    print(f"model {model}, {row}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    if done.returncode == 0:
        return [Result(**fields) for fields in json.loads(done.stdout.splitlines()[-1])]
    reason = (done.stderr.strip().splitlines() or [""])[-1]
    if done.returncode < 0:
        note = f"killed by signal {-done.returncode}, as when memory runs out"
    elif "No module named" in reason and row in PEER_LABELS:
        package = "dattri" if row == "dattri" else "traker"
        note = f"not installed: pip install {package} --no-deps ({reason.rpartition(': ')[2]})"
    else:
        note = f"could not run: {reason[:120]}"
    print(note, file=sys.stderr)
    return [Result(PEER_LABELS.get(row, row), note=note)]


def compare(model: str, setting: Setting, args: argparse.Namespace) -> list[Result]:
    """The rows of one table, the floor first."""
    rows: list[str] = args.rows
    results: dict[str, Result] = {}
    floors, others = [f"floor-{batch}" for batch in setting.floor_batches], list[str]()
    for turn in range(max(2, args.rounds)):  # the second is the first of the passes that need the best batch size
        for row in floors + others + [row for row in rows if row in OURS]:
            (result,) = run(row, model, setting, args.threads)
            results[row] = min(results.get(row, result), result, key=duration)
        if turn == 0:  # the best batch size goes on
            floors = [min(floors, key=lambda row: duration(results[row]))]
            others = [floors[0].replace("floor", passes) for passes in ("activations", "forward")]
    best, tried = results[floors[0]], ", ".join(map(str, setting.floor_batches))
    note = f"batches of {best.label.removeprefix('floor-')} copies, the best of {tried}"
    table = [replace(best, label=PASSES["floor"], note=note)]
    table += [replace(results[row], label=PASSES[row.partition("-")[0]], note="the same batches") for row in others]
    table += [results[row] for row in rows if row in OURS]
    return table + [result for row in rows if row in PEER_LABELS for result in run(row, model, setting, args.threads)]


def duration(result: Result) -> float:
    return float("inf") if result.seconds is None else result.seconds


def comparison_table(title: str, results: list[Result]) -> tuple[str, list[list[str]]]:
    cells = [["", "time", "of it dense projection", "images/s", "peak memory, MB", "note"]]
    floor_seconds = duration(results[0])
    for result in results:
        if result.seconds is None:
            cells.append([result.label, "–", "", "–", "–", result.note])
            continue
        projection = times(result.projection / floor_seconds) if result.projection else ""
        total, speed = times(result.seconds / floor_seconds), f"{1 / result.seconds:.2g}"
        cells.append([result.label, total, projection, speed, f"{result.peak / 1e6:,.0f}", result.note])
    return title, cells


def scaling_table(threads: int, most: int | None) -> tuple[str, list[list[str]]]:
    cells = [["images", "seconds", "ms per image", "peak memory, MB"]]
    for count in (count for count in SCALES if most is None or count <= most):
        (result,) = run("scale", "all", replace(TINY, images=count), threads)
        seconds = result.seconds or float("nan")
        cells.append([f"{count:,}", f"{seconds * count:.1f}", f"{seconds * 1000:.1f}", f"{result.peak / 1e6:,.0f}"])
    return f"dtrak on growing data: {TINY.title}, K = {K}, k = 4096", cells


def heading(args: argparse.Namespace) -> list[str]:
    """What a reader needs to repeat or doubt the numbers."""

    def installed(package: str) -> str:
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            return f"{package} not installed"

    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    turns = f" Time: plain forward + backward = 1; for it and for dtrak the quickest of {args.rounds} turns."
    machine = f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, torch on {args.threads}"
    packages = ("dtrak", "torch", "diffusers", "traker", "dattri")
    return [
        f"`python benchmarks/features.py {shlex.join(sys.argv[1:])}`".replace(" `", "`"),
        f"{date.today()}, {machine}, Python {platform.python_version()}, {', '.join(map(installed, packages))}.",
        f"K = {K} timesteps, objective `square`, float32. Memory: the peak beyond the loaded model."
        + turns * (not args.scaling),
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*SETTINGS, "all"], default="all", help="a: 1.1 M parameters, b: 35.7 M")
    parser.add_argument("--images", type=int, metavar="N", help="images to featurize; with --scaling, at most so many")
    parser.add_argument("--rows", default="", help=f"of {', '.join(ROWS)}: those that contain one of these words")
    parser.add_argument("--rounds", type=int, default=3, help="turns of the floor and of dtrak (default: 3)")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch, in every row (default: 2)")
    parser.add_argument("--scaling", action="store_true", help="dtrak alone, with 100, 1,000 and 4,000 images")
    parser.add_argument("--check", action="store_true", help="compare the gradients themselves, on a tiny U-Net")
    parser.add_argument("--markdown", type=Path, metavar="PATH", help="write the tables there, too")
    parser.add_argument("--row", help=argparse.SUPPRESS)  # measure this one here, for the process that asked
    args = parser.parse_args()
    args.rows = [row for row in ROWS if any(word in row for word in args.rows.split(","))]
    if not args.rows or min(args.rounds, args.threads, 1 if args.images is None else args.images) < 1:
        parser.error("no such row" if not args.rows else "--images, --rounds and --threads start from 1")
    return args


def main() -> int:
    args = parse()
    if args.check:
        from peers import check

        with TemporaryDirectory() as folder:
            return 0 if check(make_model(TINY), write_images(Path(folder, "images.npz"), TINY), K) else 1
    names = ["a", "b"] if args.model == "all" else [args.model]
    settings = {name: replace(SETTINGS[name], images=args.images or SETTINGS[name].images) for name in names}
    if args.row:
        setting = replace(TINY, images=args.images) if args.row == "scale" else settings[args.model]
        print(json.dumps([asdict(result) for result in measure(args.row, setting, args.threads)]))
        return 0
    if args.scaling:
        tables = [scaling_table(args.threads, args.images)]
    else:
        tables = [
            comparison_table(f"{each.title}, {each.images} images", compare(name, each, args))
            for name, each in settings.items()
        ]
    for table in tables:
        show(*table)
    if args.markdown:
        args.markdown.write_text("\n\n".join([*heading(args), *(markdown(*table) for table in tables)]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
