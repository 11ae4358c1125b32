"""Measure how far the credit of the artists' LoRA can be trusted: which method, prompt, parameters, way of adding.

    dtrak run artists.yaml --out run
    dtrak evaluate lds run --keep-models            # 64 halves, three seeds
    dtrak evaluate credit run --by artist --seeds 3 # leaves each artist out
    python benchmarks/artists/measure.py run measured.json

Scores of the generated pictures are compared with the models of both evaluations, which must exist. `lds` is the LDS,
`rank`, `first` and `off` compare credit with the loss of models without an artist, and `picture` with the pictures that
they draw (see `dtrak evaluate credit`). The losses and the pictures are always those of the prompt that a picture was
drawn with. For pictures drawn without guidance, `lds` and `ceiling` come from the models of the first evaluation.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtrak import attribute
from dtrak.attribution.benchmark_folder import Benchmark
from dtrak.attribution.scores import Scores
from dtrak.engines import make_engine
from dtrak.evaluation.benchmark_making import RetrainingSettings, queries_of
from dtrak.evaluation.lds import ceiling, evaluate_lds
from dtrak.evaluation.left_out import LeftOut, agreement, interval, leave_groups_out, true_shares
from dtrak.evaluation.outputs import model_outputs
from dtrak.evaluation.training_jobs import TrainingJob
from dtrak.features.trajectories import seeds_of
from dtrak.files import as_npy, as_npz, write_bytes
from dtrak.gradients.copies import select_timesteps
from dtrak.images.images import Images, load_images
from dtrak.models import load_model
from dtrak.models.prompts import PROMPT
from dtrak.models.sampling import sample, to_pixels
from dtrak.noise import stream
from dtrak.runs.run import BENCHMARK, Run
from dtrak.tables import Cell, Entry, Table

Floats = NDArray[np.float64]

BY = "artist"
PARAMETERS = {
    "the whole LoRA": None,
    "self-attention": "attn1.*lora_",
    "cross-attention": "attn2.*lora_",
    "the whole U-Net": "all",
}
CALIBRATED = (0, 0.1, 0.2, 0.4, 0.6, 0.8, 1)  # edges of the shares of credit that are averaged
ENCODER = "efficientnet-lite0"
METHODS = [
    *("random", "clip-cosine", "raw-pixel-cosine", "nda", "gradient-cosine", "trak", "d-trak", "mixed-trak", "das"),
    *("ek-fac", "step-trak"),
]


class Measured:
    """The pictures of a run, and what models without some images say about them."""

    def __init__(self, run: Run, seeds: int, cache: Path) -> None:
        self.run, self.cache, self.model = run, cache, run.model()
        self.benchmark = Benchmark.open(run.folder / BENCHMARK)
        settings = RetrainingSettings.resumed(run.folder / BENCHMARK, run.recipe.evaluation, {"seeds": seeds})
        queries = queries_of(run, settings)
        self.pictures = queries["generated"]
        self.left_out: LeftOut = leave_groups_out(run, BY, settings, make_engine("process"), queries)
        self.effects = self.left_out.effects("generated").mean(0)
        self.distances = self.left_out.distances().mean(0)
        self.prompts: list[str] = self.pictures.columns[PROMPT].tolist()
        self.artists: list[str] = self.left_out.groups.tolist()

    def scores(
        self, prompts: list[str], method: str = "step-trak", pictures: Images | None = None, **settings: Any
    ) -> Scores:
        """Score the run's pictures, or others, with some prompts."""
        shown = self.pictures if pictures is None else pictures
        asked = replace(shown, columns={**shown.columns, PROMPT: np.array(prompts, dtype=object)})
        made_with = [str(settings[name]).replace("*", "") for name in ("parameters", "timesteps") if settings.get(name)]
        folder = self.cache / ("-".join(made_with) or "default")
        return attribute(
            self.model,
            self.run.train_images,
            asked,
            method,
            cache=folder,
            latents=self.run.latents,
            ddim_steps=self.run.recipe.generation.steps,
            **settings,
        )

    def row(self, scores: Scores, credit: Floats | None = None) -> dict[str, Any]:
        """Compare scores, and the credit that follows from them, with all models that left images out."""
        shares = scores.shares(BY)[1] if credit is None else credit
        found = agreement("", shares, self.effects, self.distances)
        losses = self.benchmark.losses("generated")
        lds = evaluate_lds(scores.values, self.benchmark.masks, losses)
        return {
            "lds": [lds.mean, lds.low, lds.high],
            "rank": found.rank,
            "first": found.first,
            "off": found.off,
            "picture": found.picture,
            "shares": shares.tolist(),
        }

    def named(self, prompt: str) -> list[str]:
        """Return the artists that a prompt names."""
        return [one for one in self.artists if one in prompt.split()]

    def with_artist(self, prompt: str, artist: str) -> str:
        """Return the prompt with this artist in place of those that it names."""
        return f"{prompt.split(' by ')[0]} by {artist}"

    def other_artist(self, prompt: str) -> str:
        """Return an artist whom the prompt does not name: the next in the alphabet."""
        named = self.named(prompt)
        start = self.artists.index(named[-1]) + 1 if named else 0
        return next(one for one in [*self.artists[start:], *self.artists] if one not in named)


def prompt_rows(of: Measured) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what each way of asking gives, and how far its credit goes to the artist that a wrong prompt names."""
    given = of.scores(of.prompts)
    yield "the prompt it was drawn with", of.row(given)
    empty = of.scores([""] * len(of.prompts))
    yield "the empty prompt", of.row(empty)
    without = of.scores([one.split(" by ")[0] for one in of.prompts])
    yield "the prompt without its artists", of.row(without)
    others = [of.other_artist(one) for one in of.prompts]
    wrong = of.scores([of.with_artist(*pair) for pair in zip(of.prompts, others, strict=True)])
    row = of.row(wrong)
    places = [of.artists.index(one) for one in others]
    rows = np.arange(len(places))
    row["credit of the wrong artist"] = interval(np.array(row["shares"])[rows, places])
    row["with the right prompt"] = interval(given.shares(BY)[1][rows, places])
    row["by effect"] = interval(true_shares(of.effects)[rows, places])
    yield "the prompt with another artist", row
    every = [of.scores([of.with_artist(one, artist) for one in of.prompts]) for artist in of.artists]
    mean = replace(given, values=np.mean([one.values for one in (*every, without)], axis=0, dtype=np.float32))
    yield "the mean over all artists and none", of.row(mean)
    yield "the mean of right and empty", of.row(replace(given, values=(given.values + empty.values) / 2))


def parameter_rows(of: Measured) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what parts of the parameters give."""
    for name, pattern in PARAMETERS.items():
        yield name, of.row(of.scores(of.prompts, parameters=pattern))


def adding_rows(of: Measured) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what other ways to add up scores give as credit."""
    scores = of.scores(of.prompts)
    members = scores.groups(BY)[:, None] == np.array(of.artists)
    ways: dict[str, Callable[[Floats], Floats]] = {
        "positive scores": lambda values: values.clip(min=0) @ members,
        "all scores, then positive sums": lambda values: (values @ members).clip(min=0),
        "the ten highest, counted": lambda values: (_highest(values, 10) > 0) @ members,
        "squares of positive scores": lambda values: values.clip(min=0) ** 2 @ members,
    }
    for count in (3, 5, 10, 20, 40, 80):
        ways[f"the {count} highest"] = lambda values, count=count: _highest(values, count) @ members
    for name, add in ways.items():
        sums = np.asarray(add(scores.values.astype(np.float64)), dtype=np.float64)
        totals = sums.sum(1, keepdims=True)
        yield (
            name,
            of.row(scores, np.divide(sums, totals, out=np.full_like(sums, 1 / len(of.artists)), where=totals > 0)),
        )


def method_rows(of: Measured, methods: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what other methods give."""
    for method in methods:
        yield method, of.row(of.scores(of.prompts, method, encoder=ENCODER))


def calibration_rows(of: Measured, methods: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what shares of credit are worth: for shares of about the same size, the mean share of the effect."""
    for method in methods:
        credit = of.scores(of.prompts, method, encoder=ENCODER).shares(BY)[1]
        for low, high in pairwise(CALIBRATED):
            within = (credit >= low) & ((credit < high) | (high == 1))
            if within.any():
                yield f"{method}, {low:.0%} to {high:.0%}", worth(credit, true_shares(of.effects), within)


def worth(credit: Floats, effects: Floats, within: NDArray[np.bool_]) -> dict[str, Any]:
    """Average some shares [Q, G] of credit and of the effect, with an interval from a bootstrap over pictures."""
    counts, sums, queries = within.sum(1), np.where(within, effects, 0).sum(1), len(credit)
    picks = stream("calibration").multinomial(queries, np.full(queries, 1 / queries), size=1000)
    ends = np.percentile(picks @ sums / np.maximum(picks @ counts, 1), [2.5, 97.5])
    return {
        "count": int(counts.sum()),
        "credit": 100 * float(credit[within].mean()),
        "effect": [100 * float(one) for one in (sums.sum() / counts.sum(), *ends)],
    }


def guidance_rows(of: Measured, methods: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the LDS of the pictures, and of those drawn from the same seeds and prompts without guidance."""
    masks, without = of.benchmark.masks, drawn_without_guidance(of)
    losses = {"guided": of.benchmark.losses("generated"), "not guided": losses_of(of, without)}
    for method in methods:
        for name, pictures in {"guided": of.pictures, "not guided": without}.items():
            scores = of.scores(of.prompts, method, pictures)
            found, top = evaluate_lds(scores.values, masks, losses[name]), ceiling(losses[name])
            yield f"{method}, {name}", {"lds": [found.mean, found.low, found.high], "ceiling": top}


def drawn_without_guidance(of: Measured) -> Images:
    """Draw the pictures again, with guidance 1."""
    path = of.cache / "without-guidance.npz"
    if not path.exists():
        seeds, steps = seeds_of(of.pictures), of.run.recipe.generation.steps
        drawn = to_pixels(sample(of.model, seeds, steps, False, of.prompts, 1.0).pictures.cpu())
        write_bytes(path, as_npz({"images": drawn.numpy(), PROMPT: np.array(of.prompts)}))
    return load_images(str(path))


def losses_of(of: Measured, queries: Images) -> NDArray[np.float32]:
    """Compute L_Simple [M, S, Q] of other queries under the models that the benchmark has kept."""
    path = of.cache / "losses-without-guidance.npy"
    if not path.exists():
        settings = RetrainingSettings.resumed(of.benchmark.folder, of.run.recipe.evaluation, {})
        timesteps = select_timesteps(settings.timesteps or of.model.process.timesteps, of.model.process.timesteps)
        losses = np.empty((settings.subsets, settings.seeds, len(queries)), dtype=np.float32)
        for subset, seed in np.ndindex(*losses.shape[:2]):
            model = load_model(str(of.benchmark.folder / "retrained" / str(TrainingJob(subset, seed))))
            losses[subset, seed] = model_outputs(model, queries, timesteps, settings.noises, settings.seed)["simple"]
        write_bytes(path, as_npy(losses))
    found: NDArray[np.float32] = np.load(path)
    return found


def timestep_rows(of: Measured, methods: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what more timesteps give."""
    for method in methods:
        for timesteps in (10, 100):
            yield f"{method}, K = {timesteps}", of.row(of.scores(of.prompts, method, timesteps=timesteps))


def _highest(values: Floats, count: int) -> Floats:
    """Keep the `count` highest scores of each query [Q, N], if they are positive; the others become zero."""
    least = np.sort(values, axis=1)[:, [-count]]
    return np.where(values >= least, values.clip(min=0), 0)


def table(caption: str, rows: dict[str, dict[str, Any]]) -> Table:
    kinds = ("lds", "ceiling", "rank", "first", "off", "picture", "count", "credit", "effect")
    names = [name for name in kinds if all(name in row for row in rows.values())]

    def entry(value: float | list[float]) -> Entry:
        if isinstance(value, int):
            return value
        if isinstance(value, float):
            return Cell(value, f"{value:.1f}")
        return Cell(value[0], f"{value[0]:.1f} ({value[1]:.0f}–{value[2]:.0f})")

    return Table(["", *names], [[name, *(entry(row[one]) for one in names)] for name, row in rows.items()], caption)


KERNELS = ["step-trak", "trak", "d-trak"]
PARTS: dict[str, Callable[[Measured], Iterator[tuple[str, dict[str, Any]]]]] = {
    "methods": lambda of: method_rows(of, METHODS),
    "adding": adding_rows,
    "prompts": prompt_rows,
    "parameters": parameter_rows,
    "calibration": lambda of: calibration_rows(of, ["step-trak", "d-trak", "raw-pixel-cosine"]),
    "guidance": lambda of: guidance_rows(of, KERNELS),
    "timesteps": lambda of: timestep_rows(of, KERNELS),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path, help="a .json file for all numbers; the tables are printed")
    parser.add_argument("--seeds", type=int, default=3, help="of the trainings without an artist (default: 3)")
    parser.add_argument("--parts", default=",".join(PARTS), help="what to measure (default: all)")
    args = parser.parse_args()
    of = Measured(Run.open(args.run), args.seeds, args.run / "features" / "measured")
    found: dict[str, Any] = {
        "artists": of.artists,
        "pictures": of.prompts,
        "true shares": true_shares(of.effects).tolist(),
        "distances": of.distances.tolist(),
    }
    for name in args.parts.split(","):
        found[name] = dict(PARTS[name](of))
        print(table(name, found[name]).markdown())
        args.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
