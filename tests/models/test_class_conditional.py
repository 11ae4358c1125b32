"""Networks that are told a class: from a folder, in a recipe, and from Python with whole numbers of their own type."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler, EulerDiscreteScheduler, UNet2DModel
from torch import Tensor, nn

from dtrak import DiffusionModel, attribute, load_images, load_model
from dtrak.errors import UsageError
from dtrak.features.model_inputs import model_inputs
from dtrak.features.spec import Spec
from dtrak.images.images import Images
from dtrak.models import new_model, save_model
from dtrak.models.families import FAMILIES
from dtrak.models.sampling import sample
from dtrak.noise import gaussian
from dtrak.runs.recipes import Training
from dtrak.runs.training import Trainer
from featurized import featurize
from pictures_on_disk import refused

UNET: dict[str, Any] = {
    "block_out_channels": [4, 8],
    "layers_per_block": 1,
    "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
    "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
    "attention_head_dim": 4,
    "norm_num_groups": 2,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A U-Net with ten classes, and a scheduler that only draws differently, as diffusers saves them."""
    torch.manual_seed(0)
    network = UNet2DModel(sample_size=8, in_channels=1, out_channels=1, num_class_embeds=10, **UNET)
    network.save_pretrained(tmp_path / "model" / "unet")
    EulerDiscreteScheduler(beta_schedule="linear", beta_end=0.02).save_pretrained(tmp_path / "model" / "scheduler")
    return tmp_path / "model"


@pytest.fixture
def digits() -> Images:
    return load_images("digits:train").select(range(6))


def test_features_are_gradients_given_the_class(folder: Path, digits: Images, tmp_path: Path) -> None:
    model = load_model(str(folder))
    told = model_inputs(model, digits).condition([0, 1])
    assert told["class_labels"].dtype == torch.int64
    assert told["class_labels"].tolist() == [int(one) for one in digits.columns["label"][:2]]
    settings = Spec(timesteps="100,700", projection="identity")
    found = featurize(model, digits, ["simple"], settings, tmp_path, "x")["simple"].numpy()
    network = UNet2DModel.from_pretrained(folder / "unet").eval()
    betas = DDPMScheduler(beta_schedule="linear", beta_end=0.02)
    for row in range(2):
        loss: Any = 0.0
        for t in (100, 700):
            noise = gaussian((1, 8, 8), 0, t, 0)[None]
            noisy = betas.add_noise(digits.tensor([row]), noise, torch.tensor([t]))
            label = torch.tensor([int(digits.columns["label"][row])])
            loss = loss + (network(noisy, t, class_labels=label).sample - noise).square().mean() / 2
        expected = torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(network.parameters()))])
        assert float((torch.from_numpy(found[row]) - expected).norm() / expected.norm()) < 1e-4


def test_images_without_a_class_are_refused(folder: Path, digits: Images) -> None:
    model = load_model(str(folder))
    refused(lambda: attribute(model, replace(digits, columns={}), digits), "takes a class for each image")
    other = replace(digits, columns={"label": np.array(["cat"] * 6)})
    refused(lambda: attribute(model, other, digits), "has the class 'cat', but", "knows 0 to 9")
    refused(lambda: sample(model, [0], 2, prompts=["3"], guidance=2.0), "guidance: ", "trained without classes")
    refused(lambda: sample(model, [0], 2), "give the class of each")


def test_a_recipe_with_names_of_classes(digits: Images, tmp_path: Path) -> None:
    """Names are kept with the model, pictures differ by class, and the model is the recipe's."""
    names = np.array(["cat", "dog", "cat", "dog", "dog", "cat"])
    images = replace(digits, columns={"label": names})
    family = FAMILIES["ddpm"]
    settings: Any = family.settings.model_validate({"unet": UNET, "classes": ["cat", "dog"]})
    torch.manual_seed(0)
    trainer = Trainer(new_model(settings, images.shape, "mine"), images, Training(epochs=1, batch_size=3))
    trainer.take_step()
    save_model(trainer.model, tmp_path / "model")
    model = load_model(str(tmp_path / "model"))
    assert model_inputs(model, images).condition(range(6))["class_labels"].tolist() == [0, 1, 0, 1, 1, 0]
    cat, dog = (sample(model, [0], 3, prompts=[one]).pictures for one in ("cat", "dog"))
    assert not torch.equal(cat, dog)
    assert family.difference(model, settings, images.shape, "mine") is None
    assert family.settings.model_validate(family.settings_of(model)) == family.settings.model_validate(
        {"unet": {"dropout": 0.1, **UNET, "num_class_embeds": 2}, "classes": ["cat", "dog"]}
    )
    family.check_buildable(settings, images, "mine")
    refused(lambda: family.check_buildable(settings, digits, "mine"), "has the class")
    assert family.lay_out(settings, images.shape, "mine").trained == sum(
        one.numel() for one in model.network.parameters()
    )


class Own(nn.Module):
    """A network of one's own that is told a whole number and a vector, and has a learned variance."""

    def __init__(self) -> None:
        super().__init__()
        self.label, self.vector = nn.Embedding(10, 8), nn.Linear(3, 8)
        self.out = nn.Linear(8, 2 * 64)

    def forward(self, x: Tensor, t: Tensor, y: Tensor, vector: Tensor) -> Tensor:
        assert y.dtype == torch.int64
        assert vector.dtype == torch.float32
        return self.out(self.label(y) + self.vector(vector)).view(-1, 2, 8, 8)


def test_several_tensors_with_their_own_types(digits: Images, tmp_path: Path) -> None:
    torch.manual_seed(0)
    labels = torch.tensor([int(one) for one in digits.columns["label"]])
    vectors = gaussian((6, 3), "vectors")

    def told(images: Images) -> dict[str, Tensor]:
        rows = torch.from_numpy(digits.positions(images.ids, "test"))
        return {"y": labels[rows], "vector": vectors[rows]}

    model = DiffusionModel(Own(), DDIMScheduler(), (1, 8, 8), conditioner=told)
    settings = Spec(timesteps="100,700", projection="identity")
    found = featurize(model, digits, ["simple"], settings, tmp_path, "x")["simple"].numpy()
    for row in (1, 4):
        noise = torch.stack([gaussian((1, 8, 8), 0, t, 0) for t in (100, 700)])
        one = slice(row, row + 1)
        answer = model.network(digits.tensor([row, row]), noise, labels[one], vectors[one])
        loss = (answer[:, :1] - noise).square().mean()
        gradients = torch.autograd.grad(loss, list(model.network.parameters()))
        expected = torch.cat([one.flatten() for one in gradients]).numpy()
        np.testing.assert_allclose(found[row], expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"network": 3}, "network is a int: give an nn.Module"),
        ({"network": nn.ReLU()}, "without parameters"),
        ({"scheduler": "ddpm"}, "scheduler is a str: give a scheduler of diffusers"),
        ({"shape": (8, 8)}, "shape is .*give .channels, height, width."),
        ({"autoencoder": nn.Linear(1, 1)}, "autoencoder is a Linear: give an AutoencoderKL"),
        ({"conditioner": {"y": 3}}, "conditioner .*: give the argument's name and the column"),
        ({"adapter": 3}, "adapter is a int"),
    ],
)
def test_wrong_parts_are_one_line(change: dict[str, Any], says: str) -> None:
    parts: dict[str, Any] = {"network": nn.Linear(1, 1), "scheduler": DDPMScheduler(), "shape": (1, 8, 8)}
    with pytest.raises(UsageError, match=says) as error:
        DiffusionModel(**parts | change)
    assert "\n" not in str(error.value)


def test_wrong_arguments_are_one_line(folder: Path, digits: Images) -> None:
    model = load_model(str(folder))
    bad: list[tuple[dict[str, Any], str]] = [
        ({"model": 3}, "model is a int: give a folder, a hub id, a pipeline of diffusers"),
        ({"train": 3}, "train is a int: give a folder"),
        ({"queries": object()}, "queries is a object"),
        ({"method": 3}, "method 3: give a name"),
        ({"cache": 3}, "3 is a int: give the path of a folder"),
        ({"parameters": ["nowhere"]}, "the model has no parameter 'nowhere'"),
        ({"parameters": lambda name, value: False}, "chooses none"),
    ]
    for change, says in bad:
        arguments: dict[str, Any] = {"model": model, "train": digits, "queries": digits, "timesteps": 1} | change
        refused(lambda arguments=arguments: attribute(**arguments), says)  # type: ignore[misc]
    missing = DiffusionModel(model.network, DDPMScheduler(), (1, 8, 8), conditioner={"class_labels": "kind"})
    refused(lambda: attribute(missing, digits, digits), "has no column 'kind'; its columns are label")
    shapeless = DiffusionModel(nn.Linear(8, 4), DDPMScheduler(), (1, 8, 8), adapter=lambda net, x, t, c: net(x))
    refused(lambda: attribute(shapeless, digits, digits, timesteps=1), "give an adapter that returns the prediction")


def test_parameters_by_pattern_list_and_function(folder: Path, digits: Images) -> None:
    model = load_model(str(folder))
    names = [name for name in model.parameters() if name.startswith("conv_out")]
    ways: list[Any] = ["^conv_out", names, lambda name, value: name.startswith("conv_out")]
    scores = [attribute(model, digits, digits, "trak", timesteps=2, parameters=way).values for way in ways]
    np.testing.assert_array_equal(scores[0], scores[1])
    np.testing.assert_array_equal(scores[0], scores[2])
