"""Models of a few thousand parameters with every layer type that matters, for tests that compare with brute force."""

import torch
from diffusers import DDPMScheduler, UNet2DModel
from torch import Tensor, nn

from dtrak import DiffusionModel

SHAPE = (1, 8, 8)


def unet(prediction_type: str = "epsilon", seed: int = 0) -> DiffusionModel:
    """Convolutions, linear layers, group norms and attention; dropout that must stay off."""
    torch.manual_seed(seed)
    network = UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        block_out_channels=(4, 8),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
        norm_num_groups=2,
        dropout=0.5,
    )
    return DiffusionModel(network, DDPMScheduler(prediction_type=prediction_type), SHAPE)


class Mixed(nn.Module):
    """Embedding, layer norm, a shared layer, strides and dilation: what the U-Net lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Embedding(1000, 6)
        self.narrow = nn.Conv2d(1, 6, 3, stride=2, padding=1)
        self.wide = nn.Conv2d(6, 6, 3, padding=2, dilation=2, groups=2)
        self.norm = nn.LayerNorm(6)
        self.shared = nn.Linear(6, 6)
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.wide(self.narrow(x)).flatten(2).transpose(1, 2)  # [B, 16, 6]
        h = self.norm(h) + self.time(t)[:, None]
        h = self.shared(torch.tanh(self.shared(h)))
        return self.out(h).transpose(1, 2).reshape(-1, 1, 8, 8)


def mixed() -> DiffusionModel:
    torch.manual_seed(1)
    return DiffusionModel(Mixed(), DDPMScheduler(), SHAPE)


class Hidden(nn.Module):
    """Uses a layer's weight behind the layer's back, where no hook can see it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.conv(x) + nn.functional.conv2d(x, self.conv.weight.square(), padding=1)


def hidden() -> DiffusionModel:
    torch.manual_seed(2)
    return DiffusionModel(Hidden(), DDPMScheduler(), SHAPE)


def clean_images(count: int) -> Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(3)) * 2 - 1


class Unbatched(nn.Module):
    """Calls a layer on positions that all images share, without a batch axis."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(64, 4)
        self.mix = nn.Linear(5, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        places = self.positions(torch.arange(64)).expand(len(x), -1, -1)
        return self.mix(torch.cat([x.flatten(2).transpose(1, 2), places], 2)).transpose(1, 2).reshape(x.shape)


def unbatched() -> DiffusionModel:
    torch.manual_seed(4)
    return DiffusionModel(Unbatched(), DDPMScheduler(), SHAPE)


class TwoInputs(nn.Module):
    """A layer that takes the images and their timesteps."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.5, -0.3]))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.weight[0] * x + self.weight[1] * t.view(-1, 1, 1, 1) / 1000


class TwoOutputs(nn.Module):
    """A network of a layer that gives a tuple, and of one that takes two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(8, 8, batch_first=True)
        self.mix = TwoInputs()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        rows, _ = self.recurrent(x.flatten(1, 2))
        return self.mix(rows.reshape(x.shape), t)


def two_inputs_and_outputs() -> DiffusionModel:
    torch.manual_seed(5)
    return DiffusionModel(TwoOutputs(), DDPMScheduler(), SHAPE)


class Tables(nn.Module):
    """A block with parameters of its own: tables that are added, multiplied, repeated and selected from."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.mix, self.out = nn.Embedding(1000, 6), nn.Linear(1, 6), nn.Linear(6, 1)
        self.shift = nn.Parameter(torch.randn(2, 6))
        self.scale = nn.Parameter(torch.randn(6))
        self.first = nn.Parameter(torch.randn(1, 3, 6))
        self.places = nn.Parameter(torch.randn(1, 100, 6))
        self.strength = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        shift, gain = (self.shift[None] + self.time(t)[:, None]).chunk(2, 1)
        h = self.mix(x.flatten(2).transpose(1, 2)) + self.places[:, torch.arange(64) + 5]  # [B, 64, 6]
        h = torch.cat([self.first.to(h.dtype).repeat(len(h), 1, 1), h], 1)
        h = torch.tanh(h * gain + shift) * self.scale * self.strength
        return self.out(h + h.mean(1, keepdim=True))[:, 3:].transpose(1, 2).reshape(x.shape)


def tables() -> DiffusionModel:
    torch.manual_seed(6)
    return DiffusionModel(Tables(), DDPMScheduler(), SHAPE)
