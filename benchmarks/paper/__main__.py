"""The paper's findings and our own choices, measured again on small benchmarks; each finding is tables with errors.

    python benchmarks/paper digits=RUN/benchmark --run digits=RUN
    python benchmarks/paper cifar2=FOLDER --only constructions,noise
    python benchmarks/paper paper-cifar2=runs/cifar2/benchmark --device cuda --k 32768 --encoder CLIP --only methods

Writes OUT/NAME/FINDING.md and the figures of a finding for each benchmark NAME, and the tables that come from them in
the page OUT.md and in the README. Everything measured is kept in the folder: kill it and run it again, and only what is
missing is computed. LDS is with the best damping in hindsight, as in the paper, unless a table says otherwise; ± is the
standard deviation of a bootstrap over the retrained models.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import choices
import copies
import facts
import findings
import leads
import noise
import page
import successors
from drawings import Drawing
from study import ENCODER, Study

from dtrak.attribution.benchmark_folder import Benchmark
from dtrak.evaluation.lds import ceiling
from dtrak.figures import save_figure
from dtrak.files import write_text
from dtrak.tables import Table

FINDINGS: dict[str, Callable[[Study], findings.Finding]] = {
    "methods": findings.methods,
    "constructions": findings.constructions,
    "interpolation": noise.interpolation,
    "noise": noise.noise,
    "draws": noise.draws,
    "retraining": findings.retraining,
    "other-models": findings.other_models,
    "outputs": findings.outputs,
    "ablations": findings.ablations,
    "counterfactuals": findings.counterfactuals,
    "pictures": findings.pictures,
    "recommended": choices.recommended,
    "recommended-100": choices.recommended_100,
    "copies": copies.copies,
    "timesteps": copies.timesteps,
    "variants": copies.variants,
    "leads": leads.leads,
    "successors": successors.successors,
    "every-method": successors.every_method,
    "mixtures": choices.mixtures,
    "projections": choices.projections,
    "parameters": choices.parameters,
    "dampings": choices.dampings,
    "costs": choices.costs,
    "seeds": facts.seeds,
    "directions": facts.directions,
    "many-timesteps": findings.many_timesteps,
}


def main() -> None:
    args = parse()
    for study in args.studies:
        for name in args.only:
            started = time.monotonic()
            write(study, name, args.out / study.name)
            print(f"{study.name}: {name}, {time.monotonic() - started:.0f} s", file=sys.stderr)
    for shown in (args.out.with_suffix(".md"), args.out.parents[1] / "README.md"):
        if shown.exists():
            page.refresh(shown, args.out)


def write(study: Study, name: str, folder: Path) -> None:
    """One finding: its tables as folder/NAME.md, and its figures beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [heading(study, name)]
    for one in FINDINGS[name](study):
        if isinstance(one, Table):
            parts.append(f"## {one.caption}\n\n{replace(one, caption='').markdown()}")
        else:
            draw(one, folder)
            parts.append(f"![{one.name}]({one.name}.png)\n")
    if len(parts) > 1:
        write_text(folder / f"{name}.md", "\n".join(parts))


def draw(drawing: Drawing, folder: Path) -> None:
    path = folder / f"{drawing.name}.png"
    if isinstance(drawing.figure, Path):
        shutil.copy(drawing.figure, path)
    else:
        save_figure(drawing.figure, path)


def heading(study: Study, finding: str) -> str:
    """What was measured, and the command that does it again."""
    benchmark = study.benchmark
    more = f" --run {study.name}=RUN" if study.run else ""
    more += f" --k {study.dim}" if study.dim else ""
    more += f" --encoder {study.encoder}" if study.encoder != ENCODER else ""
    lines = [f"# {study.name}: {finding}", ""]
    lines += [f"```\npython benchmarks/paper {study.name}=FOLDER{more} --only {finding}\n```", ""]
    for kind in study.query_kinds:
        losses = benchmark.losses(kind)
        top = ceiling(losses)
        agree = "" if top is None else f", of which two predict the third with {top:.1f} %"
        lines.append(
            f"- {kind}: {losses.shape[2]} queries, {losses.shape[0]} subsets of {len(benchmark.train):,} images; "
            f"trainings of each: {losses.shape[1]}{agree}"
        )
    return "\n".join(lines) + "\n"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--run", action="append", default=[], metavar="NAME=RUN", help="for its checkpoints")
    parser.add_argument("--folder", type=Path, default=Path("runs/paper"), help="keeps what was measured")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 or mps")
    parser.add_argument("--k", type=int, help="numbers kept for each image, where a finding does not vary them: 4,096")
    parser.add_argument("--encoder", default=ENCODER, help="for clip-dot and clip-cosine: the folder of a CLIP model")
    parser.add_argument("--only", default=",".join(FINDINGS), help=f"some of {', '.join(FINDINGS)}")
    args = parser.parse_args()
    args.only = args.only.split(",")
    if unknown := set(args.only) - FINDINGS.keys():
        parser.error(f"--only {min(unknown)}: choose from {', '.join(FINDINGS)}")
    runs = {name: Path(path) for name, _, path in (one.partition("=") for one in args.run)}
    args.studies = [
        Study(name, Benchmark.open(path), args.folder / name, runs.get(name), args.device, args.encoder, args.k)
        for name, _, path in (one.partition("=") for one in args.benchmarks)
    ]
    return args


if __name__ == "__main__":
    main()
