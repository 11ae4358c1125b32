"""The dry run: what it foretells is what a run takes, counted on real runs, and it needs no data and leaves nothing."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from diffusers import UNet2DModel

from commands import dtrak
from dtrak.attribution.attribute import chosen_methods
from dtrak.errors import UsageError
from dtrak.evaluation.benchmark_making import RetrainingSettings
from dtrak.evaluation.cost import Plan, PlannedStep, plan
from dtrak.images.images import load_images
from dtrak.models import new_model
from dtrak.models.memory import MEMORY_SHARE, PeakMemory, kept_bytes
from dtrak.models.sampling import sample
from dtrak.runs.drawing import generate
from dtrak.runs.recipes import Recipe, load_recipe
from dtrak.runs.run import Run
from dtrak.runs.run_questions import attribute_run, question_of, settings_of
from dtrak.runs.training import Trainer, train, train_in_memory
from dtrak.tables import Cell, Table
from hub import hub_of
from tiny_stable_diffusion import SIDE, save_paintings, save_pipeline

MakeRecipe = Callable[..., Path]


def steps_of(recipe: Recipe, train_images: int, validation: int, shape: tuple[int, int, int]) -> dict[str, PlannedStep]:
    settings = RetrainingSettings.resumed(Path("nowhere"), recipe.evaluation, {})
    layout = recipe.family.lay_out(recipe.model, shape, recipe.name)
    made = Plan(recipe, train_images, validation, shape, layout, torch.device("cpu"), 8 << 30, settings)
    return {one.name: one for one in made.steps()}


@contextmanager
def counting() -> Iterator[dict[str, int]]:
    """Counts the images that go through U-Nets, forward and back."""
    counts, plain = {"forward": 0, "backward": 0}, UNet2DModel.forward

    def counted(self: Any, noisy: torch.Tensor, *others: Any, **more: Any) -> Any:
        counts["forward"] += len(noisy)
        answer = plain(self, noisy, *others, **more)
        if answer.sample.requires_grad:

            def on_gradient(gradient: torch.Tensor) -> None:
                counts["backward"] += len(gradient)

            answer.sample.register_hook(on_gradient)
        return answer

    UNet2DModel.forward = counted
    try:
        yield counts
    finally:
        UNet2DModel.forward = plain


def test_passes_are_as_many_as_a_run_makes(recipe: MakeRecipe, tmp_path: Path) -> None:
    """But for the few with which a step finds out how much fits into memory."""
    changes = {"training": {"batch_size": 40}, "attribution": {"method": "d-trak"}}
    loaded = load_recipe(str(recipe(data={"select": {"count": 90}}, **changes)))
    steps = steps_of(loaded, 90, 797, (1, 8, 8))
    run = Run.create(tmp_path / "run", loaded)
    with counting() as counts:
        model = train(run, "cpu")
    probing = 2
    assert 0 <= counts["forward"] - steps["train"].forward <= probing
    assert counts["backward"] == steps["train"].backward == 90 * 2
    with counting() as counts:
        generate(run, model, loaded.generation.count, loaded.generation.seed, loaded.generation.steps)
    assert counts["forward"] == steps["generate"].forward == 4 * 5
    with counting() as counts:
        settings = settings_of(run)
        methods = chosen_methods(run.recipe.attribution.method, settings)
        pictures = run.query_source(str(run.folder / "generated"))
        attribute_run(run, question_of(run, pictures, methods, settings), device="cpu")
    probing = 2 * (1 + 4 + 4)  # for training images and for queries: a copy, and whether images can share a pass
    assert 0 <= counts["forward"] - steps["features"].forward <= probing
    assert 0 <= counts["backward"] - steps["features"].backward <= probing
    assert steps["features"].forward == 94
    assert steps["features"].backward == 2 * 90 + 4, "training images have the damping's second objective, too"


def test_retraining_makes_as_many_passes_as_are_foretold(recipe: MakeRecipe) -> None:
    loaded = load_recipe(str(recipe(data={"select": {"count": 90}}, evaluation={"subsets": 3, "seeds": 2})))
    steps = steps_of(loaded, 90, 797, (1, 8, 8))
    half = load_images("digits:train").select(range(45))
    with counting() as counts:
        train_in_memory(loaded, half, "cpu")
    probing = 1
    assert counts["forward"] == counts["backward"] + probing
    assert steps["lds: retrain"].forward == steps["lds: retrain"].backward == 3 * 2 * counts["backward"] == 540
    assert steps["lds: outputs"].forward == 6 * (100 + 4) * 1000 * 3
    assert steps["counterfactual"].backward == 3 * 4 * 72 * 2, "three methods, four pictures, four fifths, two epochs"


def test_disk_is_as_much_as_a_run_takes(finished_run: Path) -> None:
    steps = steps_of(Run.open(finished_run).recipe, 1000, 797, (1, 8, 8))

    def taken(*patterns: str) -> int:
        return sum(path.stat().st_size for one in patterns for path in finished_run.glob(one))

    weights = taken("model/unet/*.safetensors", "checkpoints/*/unet/*.safetensors")
    assert steps["train"].disk == 5 * 4 * 7_361 < weights < 1.3 * steps["train"].disk, "headers aside"
    features = taken("features/*/shard-*.safetensors")
    assert steps["features"].disk == (1000 + 4) * 64 * 4 < features < 1.05 * steps["features"].disk
    with np.load(finished_run / "scores.npz") as scores:
        assert scores["values"].nbytes == steps["score"].disk


@pytest.mark.parametrize("name", ["digits", "cifar2-small"])
def test_memory_is_as_much_as_the_steps_take(name: str) -> None:
    """Of tensors, within five percent, though nothing but shapes were known."""
    loaded = load_recipe(name, changes={"data": {"train": "digits:train"}, "training": {"batch_size": 32}})
    shape = (1, 8, 8) if name == "digits" else (1, 16, 16)
    images = load_images("digits:train", size=shape[1])
    steps, layout = steps_of(loaded, 1000, 797, shape), loaded.family.lay_out(loaded.model, shape, name)
    model = new_model(loaded.model, shape, name)
    weights = sum(value.nbytes for value in model.network.parameters())
    assert weights == 4 * layout.trained
    trainer = Trainer(model, images, loaded.training)
    trainer.take_step()
    moments = sum(value.nbytes for state in trainer.optimizer.state.values() for value in state.values())
    with PeakMemory() as peak:
        trainer.take_step()
    assert weights + moments + peak.bytes <= 1.05 * steps["train"].memory
    assert weights + moments + peak.bytes >= 0.7 * steps["train"].memory
    with PeakMemory() as peak:
        sample(model, range(30), 2)
    assert weights + peak.bytes == pytest.approx(steps["generate"].memory, rel=0.05)
    model.network.train()
    kept = kept_bytes(model.network, lambda: model.predict(torch.zeros(1, *shape), torch.zeros(1, dtype=torch.long)))
    assert layout.activations == pytest.approx(kept, rel=0.05)


def test_the_sizes_of_a_stable_diffusion_come_from_its_folder(tmp_path: Path) -> None:
    base, shape = save_pipeline(tmp_path / "pipeline"), (3, 2 * SIDE, 2 * SIDE)
    recipe = load_recipe("artbench2", "small", {"model": {"base": str(base), "lora": {"rank": 2}}})
    layout = recipe.family.lay_out(recipe.model, shape, "tiny")
    model = new_model(recipe.model, shape, "tiny")
    assert model.autoencoder is not None
    assert model.prompts is not None
    assert layout.trained == sum(value.numel() for value in model.parameters().values()) > 0
    networks = (model.network, model.autoencoder.network, model.prompts.encoder.pipeline.text_encoder)
    assert layout.trained + layout.frozen == sum(value.numel() for one in networks for value in one.parameters())
    assert layout.latents == np.prod(model.shape)
    told = model.prompts.encoder(["a painting"])
    noisy, timestep = torch.zeros(1, *model.shape), torch.zeros(1, dtype=torch.long)
    model.network.train()
    kept = kept_bytes(model.network, lambda: model.predict(noisy, timestep, told))
    assert layout.activations == pytest.approx(kept, rel=0.05), "though its prompts are shorter"
    steps = steps_of(recipe, 200, 20, shape)
    weights = sum(value.nbytes for one in networks for value in one.parameters())
    with PeakMemory() as peak:
        model.autoencoder.encode(torch.zeros(200, *shape))
    assert steps["latents"].memory == pytest.approx(weights + peak.bytes, rel=0.3)
    with PeakMemory() as peak:
        sample(model, range(8), 2, prompts=["a painting"] * 8, guidance=2.0)
    assert steps["generate"].memory == pytest.approx(weights + peak.bytes, rel=0.1)

    wrong = load_recipe("artbench2", "small", {"model": {"base": str(base), "lora": {"targets": ["to_w"]}}})
    with pytest.raises(UsageError, match=r"tiny: model\.lora\.targets: the network has no layers called to_w"):
        wrong.family.lay_out(wrong.model, shape, "tiny")


@pytest.mark.parametrize("images", [1, 3, 7])
def test_as_many_images_share_a_pass_as_was_foretold(
    images: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a LoRA's dropout, whose masks are kept as well."""
    base, shape = save_pipeline(tmp_path / "pipeline"), (3, SIDE, SIDE)
    changes = {"model": {"base": str(base), "lora": {"rank": 2, "dropout": 0.5}}, "training": {"batch_size": 7}}
    recipe = load_recipe("artbench2", "small", changes)
    layout = recipe.family.lay_out(recipe.model, shape, "tiny")
    memory = int((images + 0.5) * layout.activations / MEMORY_SHARE)
    monkeypatch.setattr("dtrak.runs.training.total_memory", lambda device: memory)
    settings = RetrainingSettings.resumed(tmp_path, recipe.evaluation, {})
    made = Plan(recipe, 50, 10, shape, layout, torch.device("cpu"), memory, settings)
    paintings = load_images(str(save_paintings(tmp_path / "paintings", 7)))
    trainer = Trainer(new_model(recipe.model, shape, "tiny"), paintings, recipe.training)
    assert trainer.at_once == made.at_once == {1: 1, 3: 3, 7: 7}[images]


def test_a_pipeline_of_the_hub_is_looked_up_without_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = save_pipeline(tmp_path / "tiny")
    shutil.copytree(base, tmp_path / "hub" / "someone" / "tiny")
    paintings = str(save_paintings(tmp_path / "paintings", 6))
    data = {"train": paintings, "select": None, "validation": paintings, "select_validation": None}
    recipe = load_recipe("artbench2", "small", {"model": {"base": "someone/tiny", "prompt": "{caption}"}, "data": data})
    with hub_of(tmp_path / "hub", tmp_path / "cache", monkeypatch) as files:
        table = plan(recipe, tmp_path / "run")
    assert {Path(file).name for file in files} == {"model_index.json", "config.json", "scheduler_config.json"}
    assert "someone/tiny will be downloaded, unless it was before" in table.notes
    own = load_recipe("artbench2", "small", {"model": {"base": str(base)}})
    layout = own.family.lay_out(own.model, (3, 64, 64), "tiny")
    assert table.notes[0].startswith(f"{layout.trained:,} parameters")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda base: shutil.rmtree(base / "unet"), r"is not a diffusers model: it has no unet/config\.json"),
        (lambda base: (base / "text_encoder_2").mkdir(), "its text encoder is not the one CLIP"),
    ],
)
def test_a_dry_run_says_what_is_wrong_with_a_base(change: Callable[[Path], None], says: str, tmp_path: Path) -> None:
    base = save_pipeline(tmp_path / "pipeline")
    change(base)
    small = load_recipe("artbench2", "small", {"model": {"base": str(base)}})
    with pytest.raises(UsageError, match=says):
        small.family.lay_out(small.model, (3, 64, 64), "tiny")


def cell(table: Table, step: str, head: str) -> str:
    row = next(row for row in table.rows if row[0] == step)
    entry = row[list(table.heads).index(head)]
    return entry.text if isinstance(entry, Cell) else str(entry)


def test_the_papers_settings_are_foretold_without_their_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dtrak.evaluation.cost.total_memory", lambda device: 24 << 30)
    table = plan(load_recipe("artbench2"), Path("runs/artbench2"))
    assert cell(table, "train", "what") == "5,000 images × 100 epochs: 7,900 steps of 64, 11 at once"
    assert cell(table, "generate", "forward passes") == f"{1000 * 50 * 2:,}", "guided"
    assert cell(table, "features", "disk") == "1.4 GB"
    encoded = "5,000 images and their mirror images, by the autoencoder; 3 prompts at most"
    assert cell(table, "latents", "what") == encoded
    assert cell(table, "score", "what") == "1,000 pictures × 5,000 images: a kernel of 5,000 × 5,000"
    assert cell(table, "lds: retrain", "what") == "64 subsets × 3 seeds = 192 models on 2,500 images"
    assert cell(table, "lds: outputs", "forward passes") == f"{192 * 2000 * 1000 * 3:,}"
    assert cell(table, "counterfactual", "what") == "3 methods × 60 pictures = 180 models on 4,000 images, at most"
    assert table.notes[0].startswith("25,509,888 parameters (25.5 M) are trained and attributed, beside 1,066.2 M")
    missing = [note for note in table.notes if note.startswith("Missing: ")]
    assert missing == [
        "Missing: no ArtBench-10 in data/artbench: ArtBench-10.csv is missing; "
        "ArtBench-10 is published at github.com/liaopeiyuan/artbench",
        "Missing: lambdalabs/miniSD-diffusers could not be looked up: its sizes are taken to be Stable Diffusion 1's",
    ]
    larger = plan(load_recipe("cifar10"), Path("runs/cifar10"))
    assert cell(larger, "score", "what").endswith("a kernel of 32,768 × 32,768"), "features are fewer than images"
    assert "hf:cifar10:train will be downloaded, unless it was before" in larger.notes


def test_images_are_counted_where_the_recipe_does_not_say(recipe: MakeRecipe, tmp_path: Path) -> None:
    table = plan(load_recipe(str(recipe())), tmp_path / "run")
    assert cell(table, "train", "what").startswith("1,000 images × 2 epochs: 8 steps of 250")
    (tmp_path / "ids.txt").write_text("1\n2\n3\n")
    table = plan(load_recipe(str(recipe(data={"subset": "ids.txt"}))), tmp_path / "run")
    assert cell(table, "train", "what").startswith("3 images")
    with pytest.raises(UsageError, match=r"no images at 'gone\.npz'"):
        plan(load_recipe(str(recipe(data={"train": "gone.npz"}))), tmp_path / "run")


def test_a_dry_run_prints_and_leaves_nothing(recipe: MakeRecipe, tmp_path: Path) -> None:
    recipe()
    before = sorted(path.name for path in tmp_path.iterdir())
    outcome = dtrak("run", "recipe.yaml", "--dry-run", cwd=tmp_path)
    assert (outcome.code, outcome.err) == (0, "")
    assert "tiny, into runs/tiny: a U-Net of 7,361 parameters" in outcome.out
    for step in ("train", "generate", "features", "score", "report", "lds: retrain", "counterfactual"):
        assert f"\n {step} " in outcome.out
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_small_scale_with_own_images_goes_through_all_steps(recipe: MakeRecipe, tmp_path: Path) -> None:
    """As `dtrak run cifar2 --scale small --train … --validation …` does, and what the recipe asks of an evaluation."""
    random = np.random.default_rng(0)
    for name in ("mine", "held-out"):
        images = random.integers(0, 256, (60, 12, 12), dtype=np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.arange(60) % 2, label_names=["odd", "even"])
    path = recipe(
        data={"train": "gone.npz", "select": {"classes": ["odd"], "count": 30}, "select_validation": {"count": 9}}
    )
    content = yaml.safe_load(path.read_text())
    content["small"] = {
        "name": "smaller",
        "data": {"size": 8, "select": {"count": 20}},
        "training": {"batch_size": 10},
        "attribution": {"method": "trak"},
        "evaluation": {"subsets": 4, "seeds": 1, "timesteps": 2, "noises": 1, "validation": 5, "generated": 3}
        | {"pictures": 2, "remove": 6},
    }
    path.write_text(yaml.safe_dump(content))
    asked = ("run", path, "--scale", "small", "--train", "mine.npz", "--validation", "held-out.npz")
    outcome = dtrak(*asked, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert outcome.out == "The report: runs/smaller/report.html\n"
    with np.load(tmp_path / "runs" / "smaller" / "scores.npz") as scores:
        assert scores["values"].shape == (4, 20)
        assert set(scores["train_ids"].tolist()) < set(range(0, 60, 2)), "odd ones are rows 0, 2, …"

    run = Path("runs/smaller")
    outcome = dtrak("evaluate", "lds", run, "--damping", "auto", "--engine", "process", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert json.loads((tmp_path / run / "lds.json").read_text())["methods"].keys() == {"trak"}
    with np.load(tmp_path / run / "benchmark" / "validation.npz") as queries:
        assert queries["images"].shape == (5, 8, 8, 1)
    assert np.load(tmp_path / run / "benchmark" / "losses.npy").shape == (4, 1, 5)
    assert np.load(tmp_path / run / "benchmark" / "generated_losses.npy").shape == (4, 1, 3)
    judged = ("--method", "random", "--encoder", "efficientnet-lite0", "--engine", "process")
    outcome = dtrak("evaluate", "counterfactual", run, *judged, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert "over 2 pictures" in outcome.out
    assert "without the 6 highest-scoring of 20 images" in outcome.out
    outcome = dtrak("evaluate", "lds", run, "--subsets", 5, "--damping", "auto", "--engine", "process", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert np.load(tmp_path / run / "benchmark" / "losses.npy").shape == (5, 1, 5), "what is typed counts"
