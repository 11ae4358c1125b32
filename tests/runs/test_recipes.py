"""Recipes: what they say is checked field by field, and what was used can be written down and read again."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dtrak.errors import UsageError
from dtrak.evaluation.training_jobs import random_subsets
from dtrak.gradients.copies import select_timesteps
from dtrak.images.selection import chosen_rows
from dtrak.models.families.pipeline_family import PipelineSettings
from dtrak.models.families.unet2d import DDPMSettings
from dtrak.runs.recipes import dump_recipe, load_recipe, recipe_names, recipe_text
from dtrak.runs.run import Run

MakeRecipe = Callable[..., Path]

PAPER = ["artbench2", "artbench5", "celeba", "cifar10", "cifar2"]
DDPMS = ["celeba", "cifar10", "cifar2"]
CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
ARTBENCH5 = ["post_impressionism", "ukiyo_e", "romanticism", "renaissance", "baroque"]
ARTBENCH10 = [*ARTBENCH5, "art_nouveau", "expressionism", "impressionism", "realism", "surrealism"]


def test_the_recipes_that_come_with_the_package_are_valid() -> None:
    assert recipe_names() == [*sorted(PAPER), "cifar2-small", "digits"]
    for name in recipe_names():
        assert load_recipe(name).name == name


# The paper's settings: its section 4 and appendix A.


@pytest.mark.parametrize(
    ("name", "millions"),
    [("cifar2", 35.7), ("cifar10", 35.7), ("celeba", 118.8), ("artbench2", 25.5), ("artbench5", 25.5)],
)
def test_models_have_as_many_parameters_as_the_papers(name: str, millions: float) -> None:
    recipe = load_recipe(name)
    size = recipe.data.size
    assert size is not None
    layout = recipe.family.lay_out(recipe.model, (3, size, size), name)
    assert round(layout.trained / 1e6, 1) == millions
    unet_vae_and_text_encoder = 859_520_964 + 83_653_863 + 123_060_480  # of Stable Diffusion 1
    assert layout.frozen == (0 if name in DDPMS else unet_vae_and_text_encoder)


@pytest.mark.parametrize(
    ("name", "train", "there", "classes", "validation", "steps"),
    [
        ("cifar2", 5_000, 50_000, ["automobile", "horse"], 1_000, 8_000),
        ("cifar10", 50_000, 50_000, None, 1_000, 78_200),
        ("celeba", 5_000, 162_770, None, 1_000, 8_000),
        ("artbench2", 5_000, 50_000, ["post_impressionism", "ukiyo_e"], 1_000, 7_900),
        ("artbench5", 12_500, 50_000, ARTBENCH5, 1_000, 19_600),
    ],
)
def test_images_and_steps_are_as_many_as_the_papers(
    name: str, train: int, there: int, classes: list[str] | None, validation: int, steps: int
) -> None:
    """Selected from labels as the published data have them: ten classes of the same size, or none."""
    recipe = load_recipe(name)
    names = CIFAR10 if name.startswith("cifar") else ARTBENCH10
    labels = None if name == "celeba" else np.random.default_rng(0).permutation(np.repeat(names, there // 10))
    assert recipe.data.select is not None
    assert recipe.data.select_validation is not None
    rows = chosen_rows(labels, there, recipe.data.select, name)
    assert len(set(rows.tolist())) == train == recipe.data.select.known_count
    if labels is not None:
        found, counts = np.unique(labels[rows], return_counts=True)
        assert found.tolist() == sorted(classes or names)
        assert set(counts.tolist()) == {train // len(found)}
    assert recipe.data.select_validation.classes == recipe.data.select.classes == classes
    assert recipe.data.select_validation.known_count == validation
    trainer_steps = recipe.training.epochs * -(-train // recipe.training.batch_size)
    assert trainer_steps == steps
    assert f"epochs: {recipe.training.epochs} " in recipe_text(name)
    assert f"# {steps:,} steps" in recipe_text(name), "the comment is right"

    evaluation = recipe.evaluation
    assert (evaluation.subsets, evaluation.fraction, evaluation.seeds) == (64, 0.5, 3)
    masks = random_subsets(64, train, 0.5, None if labels is None else labels[rows])
    assert masks.shape == (64, train)
    assert set(masks.sum(1).tolist()) == {train // 2}


@pytest.mark.parametrize("name", PAPER)
def test_everything_else_is_as_in_the_paper(name: str) -> None:
    recipe = load_recipe(name)
    training, attribution, evaluation = recipe.training, recipe.attribution, recipe.evaluation
    is_ddpm = name in DDPMS
    assert training.epochs == (200 if is_ddpm else 100)
    assert training.batch_size == (128 if is_ddpm else 64)
    assert training.learning_rate == (1e-4 if is_ddpm else 3e-4)
    assert training.prompt_dropout == (0.0 if is_ddpm else 0.1)
    assert training.betas == ((0.95, 0.999) if is_ddpm else (0.9, 0.999))
    assert (training.warmup, training.weight_decay, training.gradient_clip) == (0.1, 1e-6, 1.0)
    assert (training.flip, training.checkpoints) == (True, 4)
    assert (recipe.generation.count, recipe.generation.steps) == (1000, 50)
    assert recipe.generation.guidance == (None if is_ddpm else 7.5)
    assert select_timesteps(attribution.timesteps, recipe.timesteps) == tuple(range(0, 1000, 10))
    assert (attribution.method, attribution.draws, attribution.noise) == ("d-trak", 1, "shared")
    assert attribution.projection_dim == 32768
    assert len(select_timesteps(str(evaluation.timesteps), recipe.timesteps)) == 1000
    assert (evaluation.noises, evaluation.validation, evaluation.generated) == (3, 1000, 1000)
    assert (evaluation.remove, evaluation.pictures) == (1000, 60)
    sizes = {"celeba": (140, 64), "cifar2": (None, 32), "cifar10": (None, 32)}
    assert (recipe.data.crop, recipe.data.size) == sizes.get(name, (None, 256))
    if is_ddpm:
        assert isinstance(recipe.model, DDPMSettings)
        schedule = recipe.model.schedule
        assert (schedule.num_train_timesteps, schedule.beta_schedule) == (1000, "linear")
        assert (schedule.beta_start, schedule.beta_end) == (1e-4, 0.02)
        assert recipe.model.unet["dropout"] == 0.1
    else:
        assert isinstance(recipe.model, PipelineSettings)
        assert recipe.model.base == "lambdalabs/miniSD-diffusers"
        assert (recipe.model.lora.rank, recipe.model.lora.alpha, recipe.model.lora.dropout) == (128, 128, 0.1)
        assert recipe.model.prompt.format(label="romanticism") == "a romanticism painting"


@pytest.mark.parametrize("name", PAPER)
def test_every_line_says_what_it_means(name: str) -> None:
    """Beside it or above it; but for the headings of sections, the name and the summary, and what is made small."""
    lines = recipe_text(name).splitlines()
    assert max(map(len, lines)) <= 120
    full = lines[: lines.index(next(line for line in lines if line.startswith("small:")))]
    for before, line in pairwise(full):
        is_plain = not line or line.endswith(":") or line.startswith(("name:", "summary:"))
        assert is_plain or "#" in line or "#" in before, line


def test_the_defaults_of_training_are_the_papers(recipe: MakeRecipe) -> None:
    training = load_recipe("cifar2-small").training
    assert (training.betas, training.weight_decay, training.warmup) == ((0.95, 0.999), 1e-6, 0.1)
    assert (training.batch_size, training.flip, training.checkpoints) == (128, True, 4)
    for name in ("cifar2-small", "digits"):
        model = load_recipe(name).model
        assert isinstance(model, DDPMSettings)
        assert model.unet["dropout"] == 0.1
    assert load_recipe(str(recipe(training={"learning_rate": 1e-4}))).training.flip is False


# The same at a small scale, and with a user's own images.


@pytest.mark.parametrize("name", PAPER)
def test_the_small_scale_is_the_same_pipeline_with_less_of_everything(name: str) -> None:
    full, changes = load_recipe(name), {} if name in DDPMS else {"model": {"base": "tiny"}}
    small = load_recipe(name, "small", changes)
    assert small.name != full.name
    assert small.name not in recipe_names()
    assert small.model.kind == full.model.kind
    for less, more in ((small.data.size, full.data.size), (small.training.epochs, full.training.epochs)):
        assert less is not None
        assert more is not None
        assert less < more
    for less, more in (
        (small.data.select, full.data.select),
        (small.data.select_validation, full.data.select_validation),
    ):
        assert less is not None
        assert more is not None
        assert less.classes == more.classes
        assert (less.known_count or 0) < (more.known_count or 0)
    shape = (3, small.data.size or 0, small.data.size or 0)
    if name in DDPMS:
        layout = small.family.lay_out(small.model, shape, name)
        assert 2e5 < layout.trained < 4e5
        assert layout.activations * small.training.batch_size < 100e6
    assert small.training.betas == full.training.betas
    assert small.generation.guidance == full.generation.guidance
    evaluation = small.evaluation
    assert (evaluation.subsets or 0) * (evaluation.seeds or 0) <= 8
    assert small.data.select is not None
    assert (evaluation.remove or 0) < (small.data.select.known_count or 0)
    assert (evaluation.generated or 0) <= small.generation.count


def test_small_stable_diffusion_has_to_be_given() -> None:
    with pytest.raises(UsageError, match=r"artbench2 at scale small names no Stable Diffusion .* --base"):
        load_recipe("artbench2", "small")
    given = load_recipe("artbench2", "small", {"model": {"base": "folder"}}).model
    assert isinstance(given, PipelineSettings)
    assert (given.base, given.lora.rank, given.lora.targets[0]) == ("folder", 4, "to_q")


def test_a_scale_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="digits has no scale 'small': it has one scale only"):
        load_recipe("digits", "small")
    with pytest.raises(UsageError, match="cifar2 has no scale 'tiny': it has small"):
        load_recipe("cifar2", "tiny")


def test_changes_take_the_place_of_single_fields() -> None:
    changed = load_recipe("cifar2", changes={"data": {"train": "mine.npz"}, "model": {"unet": {"dropout": 0.5}}})
    plain = load_recipe("cifar2")
    assert changed.data == plain.data.model_copy(update={"train": "mine.npz"})
    assert isinstance(changed.model, DDPMSettings)
    assert isinstance(plain.model, DDPMSettings)
    assert changed.model.unet == plain.model.unet | {"dropout": 0.5}
    assert changed.training == plain.training
    with pytest.raises(UsageError, match=r"model\.base: Extra inputs are not permitted \(it says 'x'\)"):
        load_recipe("cifar2", changes={"model": {"base": "x"}})


def test_a_recipe_as_it_was_used_reads_the_same_again(tmp_path: Path) -> None:
    for name in recipe_names():
        path = tmp_path / f"{name}.yaml"
        path.write_text(dump_recipe(load_recipe(name)))
        assert load_recipe(str(path)) == load_recipe(name)


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("training", "epochs", 0),
        ("training", "epochs", "many"),
        ("training", "betas", [0.9, 1.0]),
        ("training", "warmup", 1.5),
        ("training", "speed", 9),
        ("generation", "steps", -1),
        ("data", "channels", 2),
        ("model", "schedule", {"beta_schedule": "quadratic"}),
        ("model", "schedule", {"prediction_type": "score"}),
        ("attribution", "seed", -3),
        ("evaluation", "subsets", 0),
        ("evaluation", "fraction", 1.0),
        ("data", "select", {"count": 0}),
    ],
)
def test_an_error_names_the_field_and_the_value(recipe: MakeRecipe, section: str, field: str, value: Any) -> None:
    path = recipe(**{section: {field: value}})
    wrong = next(iter(value.values())) if isinstance(value, dict) else value[-1] if isinstance(value, list) else value
    with pytest.raises(UsageError) as caught:
        load_recipe(str(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: {section}.{field}")
    assert repr(wrong) in message
    assert message.count("(it says") == 1


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("name: empty\nsummary: nothing\ndata: {}\n")
    with pytest.raises(UsageError, match=r"data\.train: Field required; model: Field required; training: Field req"):
        load_recipe(str(tmp_path / "empty.yaml"))


@pytest.mark.parametrize("content", ["", "just words", "[1, 2]"])
def test_what_is_no_mapping_is_no_recipe(tmp_path: Path, content: str) -> None:
    (tmp_path / "none.yaml").write_text(content)
    with pytest.raises(UsageError, match=r"none\.yaml: the recipe: Input should be a valid dictionary"):
        load_recipe(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": {"kind": "gan"}}, "model: Its kind should be ddpm or stable-diffusion or "),
        ({"model": {"kind": "stable-diffusion"}}, "model.base: Field required"),
        (
            {"generation": {"guidance": 7.5}},
            "generation.guidance is 7.5, but this ddpm takes no prompts and no classes",
        ),
        (
            {"training": {"prompt_dropout": 0.1}},
            "training.prompt_dropout is 0.1, but this ddpm takes no prompts and no classes",
        ),
        ({"data": {"select": {"count": 5, "per_class": 2}}}, "a selection has count 5 and per_class 2: give one"),
    ],
)
def test_what_does_not_go_together_is_refused(recipe: MakeRecipe, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_recipe(str(recipe()), changes=changes)
    assert says in str(caught.value)


def test_more_steps_of_ddim_than_timesteps_are_refused(recipe: MakeRecipe) -> None:
    path = recipe(generation={"steps": 51}, model={"schedule": {"num_train_timesteps": 50}, "unet": {}})
    with pytest.raises(UsageError, match=r"generation\.steps.*51.*50"):
        load_recipe(str(path))


@pytest.mark.parametrize(
    ("unet", "says"),
    [
        ({"block_out_chanels": [8, 8]}, "model.unet.block_out_chanels: diffusers' UNet2DModel has no such setting"),
        ({"block_out_channels": [8, 6], "norm_num_groups": 4}, "model.unet"),
        ({"down_block_types": ["DownBlock2D", "SideBlock2D"]}, "SideBlock2D"),
        ({"block_out_channels": 8}, "model.unet"),
    ],
)
def test_an_impossible_network_is_refused_before_anything_is_written(
    recipe: MakeRecipe, tmp_path: Path, unet: dict[str, Any], says: str
) -> None:
    loaded = load_recipe(str(recipe()))
    assert isinstance(loaded.model, DDPMSettings)
    changed = loaded.model_copy(update={"model": loaded.model.model_copy(update={"unet": loaded.model.unet | unet})})
    with pytest.raises(UsageError) as caught:
        Run.create(tmp_path / "run", changed)
    assert says in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_images_that_the_network_cannot_halve_are_refused(recipe: MakeRecipe, tmp_path: Path) -> None:
    np.savez(tmp_path / "odd.npz", images=np.zeros((3, 9, 9), np.uint8))
    unet = {"block_out_channels": [8, 8], "norm_num_groups": 4}
    unet |= {"down_block_types": ["DownBlock2D"] * 2, "up_block_types": ["UpBlock2D"] * 2}
    data = {"train": str(tmp_path / "odd.npz"), "validation": None}
    loaded = load_recipe(str(recipe(data=data, model={"unet": unet})))
    with pytest.raises(UsageError, match=r"2 blocks halve the images 1 times, but 9×9.* data\.size a multiple of 2"):
        Run.create(tmp_path / "run", loaded)


def test_stable_diffusion_has_the_papers_guidance_and_betas_unless_told_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    content: dict[str, Any] = {
        "name": "own",
        "summary": "own",
        "data": {"train": "paintings"},
        "model": {"kind": "stable-diffusion", "base": "a/b", "lora": {"rank": 4, "alpha": 4}, "prompt": "{caption}"},
        "training": {"epochs": 1},
    }
    path.write_text(yaml.safe_dump(content))
    assert load_recipe(str(path)).generation.guidance == 7.5
    assert load_recipe(str(path)).training.betas == (0.9, 0.999)
    content |= {"generation": {"guidance": 2.0}, "training": {"epochs": 1, "betas": [0.8, 0.9]}}
    path.write_text(yaml.safe_dump(content))
    assert load_recipe(str(path)).generation.guidance == 2.0
    assert load_recipe(str(path)).training.betas == (0.8, 0.9)
