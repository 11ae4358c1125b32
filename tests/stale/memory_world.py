"""The world in memory: a notebook that changes a network, images and functions in place, and asks again and again."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, DDPMScheduler
from diffusers.training_utils import EMAModel
from numpy.typing import NDArray
from torch import Tensor, nn

import dtrak
from worlds import QUERIES, SIDE, TRAIN, State, World, pictures

PLUG_IN = """
POWER = 2.0

def helper(x):
    return x.abs() ** {helper}

class Shape:
    power = 2.0
    def __call__(self, x):
        return x.abs() ** self.power

def make(strength, shape):
    def objective{name}(predicted, noise, elbo_weights):
        error = predicted - noise
        every = helper(error) + strength * error.abs() ** POWER + shape(error) + {source} * error.abs()
        return every.flatten(1).mean(1)
    return objective{name}

def load_encoder{name}(name, device):
    return ENCODER
"""


class Network(nn.Module):
    """A layer that learns and one that is frozen, a class, and a number that is no weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 1, 3, padding=1)
        self.of_class, self.of_time, self.gain = nn.Linear(1, 4), nn.Linear(1, 4), 1.0
        self.last.requires_grad_(False)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        h = self.first(x) + (self.of_class(y[:, None]) + self.of_time(t[:, None] / 1000))[:, :, None, None]
        return self.last(torch.tanh(self.gain * h))


class Encoder:
    """An encoder of images."""

    name = "mine"

    def __init__(self) -> None:
        self.network = nn.Linear(SIDE * SIDE, 5)

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        flat = torch.from_numpy(pixels[..., 0].reshape(len(pixels), -1)).float() / 255
        return np.asarray(self.network(flat).detach().numpy())


class MemoryWorld(World):
    """Objects that live as long as the world."""

    worlds = 0  # names of functions are known to the whole process, so each world has its own

    def __init__(self, folder: Path, state: State) -> None:
        super().__init__("module", folder, state, folder)
        MemoryWorld.worlds += 1
        self.number = MemoryWorld.worlds
        torch.manual_seed(0)
        self.network, self.encoder = Network(), Encoder()
        self.autoencoder = AutoencoderKL(
            in_channels=1,
            out_channels=1,
            block_out_channels=(4,),
            latent_channels=1,
            norm_num_groups=2,
            scaling_factor=0.5,
        )
        modules = {"network": self.network, "autoencoder": self.autoencoder, "encoder": self.encoder.network}
        self.weights = {name: {key: one.clone() for key, one in of.named_parameters()} for name, of in modules.items()}
        self.modules = modules
        self.sides = {"train": pictures(TRAIN, 1, 0), "queries": pictures(QUERIES, 1, 1)}
        self.plug_in, self.source = ModuleType("plug_in"), ""
        self.objectives: dict[int, Any] = {}
        self.scale, self.strength = [1.0], [1.0]
        self.opened: dict[int, dtrak.DiffusionModel] = {}
        write_memory(self)

    def model(self) -> Any:
        return self.opened[self.state["scheduler"]]

    def images(self, side: str) -> Any:
        """The images of an array, which is changed in place."""
        labels = [1, 0, 1, 0, 1, 0, 1, 2 if self.state["label"] else 0] if side == "train" else [0, 1]
        artists = ["a", "b", "d" if self.state["artist"] else "c", *"abcab"] if side == "train" else ["", ""]
        return dtrak.images_from(self.sides[side], name=side, label=labels, artist=artists)

    def fixed(self) -> State:
        if self.state["methods"] == "clip-dot":
            return {"encoder": getattr(self.plug_in, f"load_encoder{self.number}")}
        return {"objective": self.objectives[self.state["closure"]]}


def write_memory(world: World) -> None:
    """Set everything to what the state says, by the ways that leave the fewest traces."""
    assert isinstance(world, MemoryWorld)
    state = world.state
    for side, fact, row in (("train", "pixel", 3), ("queries", "query pixel", 1)):
        usual = pictures(len(world.sides[side]), 1, 0 if side == "train" else 1)[row, :2]
        world.sides[side][row, :2] = usual ^ np.uint8(255 * state[fact])
    for part, module in world.modules.items():
        for name, value in module.named_parameters():
            fact = (
                "frozen weights" if name.startswith("last") else "weights" if part == "network" else f"{part} weights"
            )
            value.data.copy_(world.weights[part][name] * (1.2 if state[fact] else 1.0))  # raises no version
    if state["averaged weights"]:
        average = EMAModel([world.network.first.bias])
        average.shadow_params[0].add_(0.3)
        average.copy_to([world.network.first.bias])
    world.network.gain = 1.5 if state["attribute"] else 1.0
    world.scale[0] = 1.5 if state["conditioner"] else 1.0
    world.strength[0] = 1.5 if state["adapter"] else 1.0
    _write_objective(world)
    if state["scheduler"] not in world.opened:
        world.opened[state["scheduler"]] = dtrak.DiffusionModel(
            world.network,
            DDPMScheduler(beta_end=0.01 if state["scheduler"] else 0.02),
            (1, SIDE, SIDE),
            autoencoder=world.autoencoder,
            conditioner=lambda images: {"y": torch.tensor(images.columns["label"]).float() * world.scale[0]},
            adapter=lambda network, noisy, time, condition: network(noisy, time, condition["y"]) * world.strength[0],
        )


def _write_objective(world: MemoryWorld) -> None:
    """Load the file of the objective again if it was edited, and set what the objective reads."""
    state = world.state
    changed = {"helper": 3 if state["helper"] else 2, "source": 2 if state["source"] else 1}
    source = PLUG_IN.format(name=world.number, **changed)
    if source != world.source:
        world.source, world.plug_in.ENCODER = source, world.encoder
        exec(source, world.plug_in.__dict__)
        shape = world.plug_in.Shape()
        world.objectives = {fact: world.plug_in.make(1.0 + fact, shape) for fact in (0, 1)}
        world.plug_in.shape = shape
    world.plug_in.POWER = 3.0 if state["global"] else 2.0
    world.plug_in.shape.power = 3.0 if state["object"] else 2.0
