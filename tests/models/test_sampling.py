"""Drawing pictures: the same as diffusers' DDIM, one seed for each, and a folder that holds what was asked for last."""

import json
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from diffusers import DDIMScheduler
from safetensors.torch import load_file, save_file

from commands import dtrak, dtrak_started
from conftest import tiny_recipe
from dtrak.errors import DtrakError, UsageError
from dtrak.images.images import load_images
from dtrak.models import DiffusionModel, load_model
from dtrak.models.sampling import BATCH, sample, to_pixels
from dtrak.noise import gaussian


@pytest.fixture(scope="module")
def model(finished_run: Path) -> DiffusionModel:
    return load_model(str(finished_run / "model"))


@torch.no_grad()
def test_it_is_the_ddim_of_diffusers(model: DiffusionModel) -> None:
    solver = DDIMScheduler.from_pretrained(Path(model.source) / "scheduler")
    solver.set_timesteps(50)
    x = torch.stack([gaussian((1, 8, 8), seed, "x_T") for seed in (5, 6)])
    for t in solver.timesteps:
        x = solver.step(model.network(x, t).sample, t, x, eta=0.0).prev_sample
    torch.testing.assert_close(sample(model, [5, 6]).pictures, x.clamp(-1, 1), rtol=0, atol=1e-5)


def test_a_seed_gives_the_same_picture_alone_or_in_a_batch(model: DiffusionModel) -> None:
    together = sample(model, [0, 1, 2, 3], steps=10).pictures
    for seed, picture in enumerate(together):
        torch.testing.assert_close(sample(model, [seed], steps=10).pictures[0], picture, rtol=0, atol=1e-4)
    assert not torch.allclose(together[0], together[1], atol=0.1)


@torch.no_grad()
def test_the_trajectory_goes_from_noise_to_the_picture(model: DiffusionModel) -> None:
    samples = sample(model, [4, 9], steps=10, trajectory=True)
    assert samples.estimates is not None
    assert samples.estimates.shape == (10, 2, 1, 8, 8)
    noise, t = gaussian((1, 1, 8, 8), 9, "x_T"), torch.tensor([900])
    signal, sigma = model.process.signal_and_noise(t)
    first = ((noise - sigma * model.predict(noise, t)) / signal).clamp(-1, 1)
    torch.testing.assert_close(samples.estimates[0, 1], first[0], rtol=0, atol=1e-5)
    assert torch.equal(samples.estimates[-1].clamp(-1, 1), samples.pictures)
    assert samples.timesteps.tolist() == list(range(900, -1, -100))
    assert torch.equal(sample(model, [4, 9], steps=10).pictures, samples.pictures)


@pytest.mark.parametrize("steps", [0, 1001])
def test_the_number_of_steps_is_bounded_by_the_schedule(model: DiffusionModel, steps: int) -> None:
    with pytest.raises(UsageError, match=f"{steps} steps of DDIM: .* takes from 1 to 1000"):
        sample(model, [0], steps=steps)


def test_pixels_round_to_the_nearest() -> None:
    pictures = torch.tensor([-1.0, -0.999, 0.0, 0.999, 1.0]).view(1, 1, 1, 5)
    assert to_pixels(pictures).flatten().tolist() == [0, 0, 128, 255, 255]


# the folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_holds_exactly_the_pictures_asked_for_last(own_run: Path) -> None:
    generated = own_run / "generated"
    first = (generated / "seed-00002.png").read_bytes()
    outcome = dtrak("generate", own_run, "--count", 3, "--seed", 2, cwd=own_run)
    assert outcome.code == 0, outcome.err
    assert str(generated) in outcome.out
    pictures = [f"seed-{seed:05d}.png" for seed in (2, 3, 4)]
    assert names(generated) == ["made-by.json", "metadata.jsonl", *pictures]
    images = load_images(str(generated))
    assert images.ids.tolist() == pictures
    assert images.columns["seed"].tolist() == [2, 3, 4]
    assert (generated / "seed-00002.png").read_bytes() == first
    assert not list(own_run.glob("*unfinished*"))


def test_other_weights_draw_every_picture_anew(own_run: Path) -> None:
    before = (own_run / "generated" / "seed-00001.png").read_bytes()
    path = own_run / "model" / "unet" / "diffusion_pytorch_model.safetensors"
    save_file({name: value * 0.5 for name, value in load_file(path).items()}, path, {"format": "pt"})
    assert dtrak("generate", own_run, cwd=own_run).code == 0
    assert (own_run / "generated" / "seed-00001.png").read_bytes() != before


def test_killed_again_and_again_it_goes_on_and_ends_with_the_same_pictures(own_run: Path, finished_run: Path) -> None:
    asked = ("generate", own_run, "--count", 200, "--seed", 0)
    unfinished = own_run / "generated-unfinished"
    kept: set[str] = set()
    kills = 0
    for _ in range(3):
        with dtrak_started(*asked, cwd=own_run) as command:
            while command.runs and len(list(unfinished.glob("*.png"))) <= max(len(kept), 4):
                time.sleep(0.005)
            command.signal(signal.SIGKILL)
            kills += command.outcome().code == -signal.SIGKILL
        now = {path.name for path in unfinished.glob("*.png")}
        assert kept <= now
        kept = now
        assert len(load_images(str(own_run / "generated"))) == 4, "what was there stays until the new ones are complete"
    assert kills == 3
    batches = [[f"seed-{seed:05d}.png" for seed in range(start, start + BATCH)] for start in range(0, 200, BATCH)]
    whole = [name for batch in batches if kept.issuperset(batch) for name in batch]
    copied = {path.name for path in (own_run / "generated").glob("*.png")}  # each time anew, from the finished ones
    written = {name: (unfinished / name).stat().st_mtime_ns for name in whole if name not in copied}
    assert dtrak(*asked, cwd=own_run).code == 0
    assert {name: (own_run / "generated" / name).stat().st_mtime_ns for name in written} == written
    assert not list(own_run.rglob(".*.tmp"))
    uninterrupted = shutil.copytree(finished_run, own_run / "uninterrupted")
    assert dtrak("generate", uninterrupted, "--count", 200, "--seed", 0, cwd=own_run).code == 0
    pictures = {path.name: path.read_bytes() for path in (own_run / "generated").glob("*.png")}
    assert len(pictures) == 200
    assert pictures == {path.name: path.read_bytes() for path in (uninterrupted / "generated").glob("*.png")}


def test_without_count_and_seed_the_recipe_decides(own_run: Path) -> None:
    tiny_recipe(own_run / "recipe.yaml", generation={"count": 2, "seed": 7})
    assert dtrak("generate", own_run, cwd=own_run).code == 0
    rows = [json.loads(line) for line in (own_run / "generated" / "metadata.jsonl").read_text().splitlines()]
    assert rows == [{"file_name": f"seed-{seed:05d}.png", "seed": seed} for seed in (7, 8)]


def test_nan_is_named_by_seed_and_timestep(model: DiffusionModel) -> None:
    broken = load_model(model.source)
    with torch.no_grad():
        broken.network.conv_out.bias.fill_(torch.nan)
    with pytest.raises(DtrakError, match="not finite for the picture with seed 3 at timestep 800"):
        sample(broken, [3, 4], steps=5)
