"""The same features the way others compute them, timed on slices that `features.py` scales up.

The gradient of each image comes from `vmap(grad)`, the projection is a dense Gaussian matrix that is drawn again, block
by block, for every batch of images: the code of the paper, `traker` and `dattri` share this on a CPU.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from dtrak.gradients.copies import Copies, select_timesteps
from dtrak.gradients.featurizer import Featurizer
from dtrak.gradients.objectives import square
from dtrak.gradients.projections import make_projection
from dtrak.images.images import load_images
from dtrak.models import DiffusionModel

BLOCK = 100  # columns of the matrix that exist at one time, in traker and in dattri


@dataclass(frozen=True)
class Slice:
    """How much of a peer's work is run; the rest is the same again."""

    images: int  # in a batch, which is one vmap and one draw of the matrix
    columns: int  # of the matrix's k; at least two blocks, since one block would be drawn once and kept
    rows: int = 1  # one in so many of the matrix's d rows
    timesteps: int = 10  # of the paper's loop
    repeats: int = 2  # the quickest counts


@dataclass(frozen=True)
class Cost:
    """Seconds for one image."""

    gradient: float
    column: float  # for each of k
    fixed: float = 0.0  # for any k

    def projection(self, k: int) -> float:
        return self.fixed + self.column * k


def paper(model: DiffusionModel, clean: Tensor, copies: Copies, part: Slice) -> Cost:
    """A loop over timesteps around vmap(grad), and traker's projector."""
    projector = timed_projector(model, part)
    gradient = []
    for _ in range(part.repeats):
        start = time.perf_counter()
        gradients = gradients_by_timestep(model, clean, copies, part.timesteps)
        gradient.append(time.perf_counter() - start)
        projector.project(gradients, 0)
    scale = len(copies.timesteps) / part.timesteps / len(clean)
    return Cost(min(gradient) * scale, projector.seconds_per_column() / len(clean))


def traker(model: DiffusionModel, clean: Tensor, copies: Copies, part: Slice) -> Cost:
    """TRAKer.featurize, into its own store."""
    projector = timed_projector(model, part)
    gradient = []
    with TemporaryDirectory() as folder:
        tracker = make_traker(model, copies, len(clean), folder, projector)
        for repeat in range(part.repeats):
            tracker.load_checkpoint(model.network.state_dict(), model_id=repeat)
            start = time.perf_counter()
            tracker.featurize(batch=[clean], num_samples=len(clean))
            gradient.append(time.perf_counter() - start - projector.seconds[-1])
    return Cost(min(gradient) / len(clean), projector.seconds_per_column() / len(clean))


def dattri(model: DiffusionModel, clean: Tensor, copies: Copies, part: Slice) -> Cost:
    """What TRAKAttributor does with a batch before it turns to its kernel."""
    from dattri.func.projection import random_project

    compute = dattri_gradients(model, copies)
    gradient: list[float] = []
    fixed: list[float] = []
    column: list[float] = []
    for _ in range(part.repeats):
        times = [time.perf_counter()]
        gradients = compute(clean)
        times.append(time.perf_counter())
        gradients = gradients[:, : gradients.shape[1] // part.rows]
        project = random_project(gradients, len(clean), part.columns, 32)
        times.append(time.perf_counter())
        project(gradients)
        times.append(time.perf_counter())
        del project  # and its matrix
        for seconds, start, end in zip((gradient, fixed, column), times, times[1:], strict=False):
            seconds.append((end - start) / len(clean))
    return Cost(min(gradient), min(column) * part.rows / part.columns, min(fixed) * part.rows)


PEERS: dict[str, Callable[[DiffusionModel, Tensor, Copies, Slice], Cost]] = {
    "paper": paper,
    "traker": traker,
    "dattri": dattri,
}


def all_copies(model: DiffusionModel, count: int) -> Copies:
    """The same noised copies for everyone."""
    return Copies(select_timesteps(count, model.process.timesteps))


def gradients_by_timestep(model: DiffusionModel, clean: Tensor, copies: Copies, count: int | None = None) -> Tensor:
    """The gradient of each image [B, d], one timestep after the other; of only the first `count`, if given."""

    def square(weights: dict[str, Tensor], noisy: Tensor, timestep: Tensor) -> Tensor:
        answer: Tensor = functional_call(model.network, weights, (noisy[None], timestep[None])).sample
        return answer.square().mean()

    of_each = vmap(grad(square), in_dims=(None, 0, 0))
    weights = {name: value.detach() for name, value in model.network.named_parameters()}
    total = None
    for timestep, noise in list(zip(copies.timesteps, copies.noises(model.shape, None), strict=True))[:count]:
        timesteps = torch.full((len(clean),), timestep)
        gradients = of_each(weights, model.process.add_noise(clean, noise, timesteps), timesteps)
        flat = torch.cat([gradient.flatten(1) for gradient in gradients.values()], 1)
        total = flat if total is None else total.add_(flat)
    assert total is not None
    return total.div_(len(copies.timesteps))


def mean_square(model: DiffusionModel, copies: Copies) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    """The objective of one image [C, H, W] as a function of the weights: the mean over its noised copies."""
    noises, timesteps = copies.noises(model.shape, None), torch.tensor(copies.timesteps)

    def output(weights: dict[str, Tensor], image: Tensor) -> Tensor:
        noisy = model.process.add_noise(image.expand_as(noises), noises, timesteps)
        answer: Tensor = functional_call(model.network, weights, (noisy, timesteps)).sample
        return answer.square().mean()

    return output


def make_traker(model: DiffusionModel, copies: Copies, images: int, folder: str, projector: Any) -> Any:
    """traker's TRAKer for a diffusion model."""
    from trak import TRAKer
    from trak.modelout_functions import AbstractModelOutput

    class DiffusionOutput(AbstractModelOutput):
        def __init__(self) -> None:
            self.output = mean_square(model, copies)

        def get_output(self, network: Any, weights: dict[str, Tensor], buffers: Any, image: Tensor) -> Tensor:
            return self.output(weights, image)

        def get_out_to_loss_grad(self, network: Any, weights: Any, buffers: Any, batch: list[Tensor]) -> Tensor:
            return torch.ones(len(batch[0]), 1)

    return TRAKer(
        model=model.network,
        task=DiffusionOutput(),
        train_set_size=images,
        save_dir=folder,
        device="cpu",
        projector=projector,
        use_half_precision=False,
        logging_level="ERROR",
    )


def dattri_gradients(model: DiffusionModel, copies: Copies) -> Callable[[Tensor], Tensor]:
    """From images [B, C, H, W] to the gradients [B, d] of dattri's AttributionTask."""
    from dattri.task import AttributionTask

    output = mean_square(model, copies)

    def loss(weights: dict[str, Tensor], data: tuple[Tensor]) -> Tensor:
        return output(weights, data[0])

    task = AttributionTask(loss, model.network, model.network.state_dict())
    compute = task.get_grad_loss_func(in_dims=(None, 0))
    weights, _ = task.get_param(ckpt_idx=0)
    return lambda clean: compute(weights, (clean,))


def timed_projector(model: DiffusionModel, part: Slice) -> Any:
    """traker's projector for a CPU over a slice of the d × k matrix, with a clock."""
    from trak.projectors import BasicProjector, ProjectionType
    from trak.utils import vectorize

    class TimedProjector(BasicProjector):
        def __init__(self) -> None:
            rows = model.network.num_parameters() // part.rows
            super().__init__(rows, part.columns, 0, ProjectionType.normal, "cpu", block_size=BLOCK)
            self.seconds: list[float] = []

        def project(self, grads: Any, model_id: int) -> Tensor:
            flat = vectorize(grads, device="cpu") if isinstance(grads, dict) else grads
            start = time.perf_counter()
            projected: Tensor = super().project(flat[:, : self.grad_dim], model_id)
            self.seconds.append(time.perf_counter() - start)
            return projected

        def seconds_per_column(self) -> float:
            return min(self.seconds) * part.rows / part.columns

    return TimedProjector()


def check(model: DiffusionModel, images: Path, count: int) -> bool:
    """Whether everyone finds the gradients that dtrak finds, with nothing projected."""
    warnings.filterwarnings("ignore")
    loaded, copies, parameters = load_images(str(images)), all_copies(model, count), model.parameters()
    clean = loaded.tensor(range(len(loaded)))
    identity = make_projection("identity", 0, {name: tuple(value.shape) for name, value in parameters.items()}, 0)
    expected = Featurizer(model, [square], copies, identity, parameters)(clean, loaded.ids.tolist())[0]

    def from_traker() -> Tensor:
        from trak.projectors import NoOpProjector

        with TemporaryDirectory() as folder:
            tracker = make_traker(model, copies, len(clean), folder, NoOpProjector(device="cpu"))
            tracker.load_checkpoint(model.network.state_dict(), model_id=0)
            tracker.featurize(batch=[clean], num_samples=len(clean))
            stored: Tensor = torch.from_numpy(tracker.saver.current_store["grads"][:])
        return stored * tracker.normalize_factor

    ways: dict[str, Callable[[], Tensor]] = {
        "paper": lambda: gradients_by_timestep(model, clean, copies),
        "traker": from_traker,
        "dattri": lambda: dattri_gradients(model, copies)(clean),
    }
    errors = {}
    for name, compute in ways.items():
        try:
            errors[name] = float((compute() - expected).norm() / expected.norm())
            print(f"{name}: differs from dtrak by {errors[name]:.1e} of the gradient's length")
        except ImportError as error:
            print(f"{name}: not installed ({error})")
    return all(error < 1e-4 for error in errors.values())
