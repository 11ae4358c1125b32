"""A method is plain data: a variant of one, or one of a user's own, is scored by what its record says."""

import re
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import dtrak
import tiny
from dtrak.contracts import KernelInput, Values, Vectors
from dtrak.errors import UsageError
from dtrak.gradients.copies import timesteps_of
from dtrak.gradients.objectives import get_objective
from dtrak.methods import METHODS, Gradients, Method, Ridge
from dtrak.methods.method import kernel_scores
from dtrak.models.diffusion import LATE
from dtrak.noise import gaussian
from tiny_benchmark import TRAIN, VALIDATION

Array = NDArray[np.float64]
QUERIES, LAMBDA = VALIDATION.select([3, 0, 2]), 0.01
EXACT: dict[str, Any] = {"timesteps": 2, "projection": "identity", "damping": f"absolute:{LAMBDA}"}

METHOD_FILES = sorted({METHODS[name].formula.__module__ for name in METHODS} | {"dtrak.methods.step_trak"})
MOST_MODULES = 9
KERNELS = [name for name, one in METHODS.items() if one.kernel is not None and one.needs.models == "final"]
SMALL = "conv_in|conv_out"


def assert_close(found: NDArray[np.floating], expected: Array) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


def scored(method: str | Method, **settings: object) -> dtrak.Scores:
    asked = EXACT | {"parameters": SMALL} | settings
    found = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method, **asked)
    assert isinstance(found, dtrak.Scores)
    return found


@pytest.mark.parametrize("module", METHOD_FILES)
def test_a_method_file_loads_few_modules(module: str) -> None:
    code = f"import sys, {module}; print(sum(name.split('.')[0] == 'dtrak' for name in sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(found.stdout) <= MOST_MODULES


def test_records_are_equal_if_all_their_fields_are() -> None:
    trak = METHODS["trak"]
    assert {trak, replace(trak), replace(trak, square=True)} == {trak, replace(trak, square=True)}
    assert replace(trak, needs=Gradients(("square",))) != trak


@pytest.mark.parametrize("name", [name for name in KERNELS if name not in ("step-trak", "journey-trak")])
def test_every_kernel_method_can_be_squared(name: str) -> None:
    plain = scored(name)
    squared = scored(replace(METHODS[name], name=f"{name}-squared", square=True))
    assert squared.method == f"{name}-squared"
    assert_close(squared.values, plain.values * np.abs(plain.values))
    assert (squared.self_influence is None) == (plain.self_influence is None)
    if plain.self_influence is not None:
        assert squared.self_influence is not None
        assert_close(squared.self_influence, np.square(plain.self_influence, dtype=np.float64))


def test_a_name_stands_for_one_method() -> None:
    with pytest.raises(UsageError, match="another method called 'trak' already: give yours another name"):
        scored(replace(METHODS["trak"], square=True))
    mine, other = (
        Method("mine", "one of mine", Gradients(), kernel_scores, Ridge(), square=one) for one in (True, False)
    )
    scored(mine)
    scored(other)  # as in a notebook, where a cell is changed and run again
    with pytest.raises(UsageError, match="another method called 'mine' already"):
        dtrak.attribute(tiny.unet(), TRAIN, QUERIES, [mine, other], **EXACT)
    assert "mine" not in METHODS


def twice(vectors: KernelInput, damping: float) -> Values:
    return 2 * kernel_scores(vectors, damping)


def test_methods_of_the_same_gradients_have_kernels_of_their_own(tmp_path: Path) -> None:
    """Asked together, in any order, each scores as it does alone."""
    step = METHODS["step-trak"]
    assert isinstance(step.needs, Gradients)
    own = [
        replace(step, name="twice", formula=twice),
        replace(step, name="own-lengths", needs=replace(step.needs, unit=False)),
        replace(step, name="other-rule", kernel=Ridge("rows")),
        replace(step, name="all-layers", needs=replace(step.needs, layers="usual")),
        replace(step, name="two-objectives", needs=replace(step.needs, objectives=("simple", "avg"))),
        replace(step, name="of-each-copy", kernel=Ridge("rows", pooled=False)),
        replace(step, name="uniform", needs=replace(step.needs, timesteps="uniform")),
        replace(METHODS["trak"], name="visible", needs=Gradients(timesteps="visible", layers="later")),
    ]
    asked = {"timesteps": 2, "projection_dim": 64}
    alone = {one.name: dtrak.attribute(tiny.unet(), TRAIN, QUERIES, one, **asked).values for one in [step, *own]}
    for order in ([step, *own], [*own[::-1], "step-trak"]):
        together = dtrak.attribute(tiny.unet(), TRAIN, QUERIES, order, cache=tmp_path, **asked)
        for name, values in alone.items():
            np.testing.assert_allclose(together[name].values, values, rtol=1e-4, atol=1e-4 * np.abs(values).max())
    apart = [values / np.abs(values).max() for values in alone.values()]
    assert all(np.abs(one - other).max() > 1e-3 for i, one in enumerate(apart[1:]) for other in apart[i + 2 :])


def gradients_at(steps: tuple[int, ...], images: dtrak.Images, parameters: str, objective: str = "simple") -> Array:
    """The gradient of each copy by autograd, [images, copies, d]."""
    model, found = tiny.unet(), list[torch.Tensor]()
    model.network.eval()
    chosen = [value for name, value in model.network.named_parameters() if re.search(parameters, name)]
    for clean, step in product(images.tensor(range(len(images))), steps):
        t, noise = torch.tensor([step]), gaussian(model.shape, 0, step, 0)[None]
        predicted = model.predict_target(model.process.add_noise(clean[None], noise, t), t)
        value = get_objective(objective)(predicted, noise, model.process.elbo_weights(t)).sum()
        found.append(torch.cat([one.flatten() for one in torch.autograd.grad(value, chosen)]))
    return torch.stack(found).unflatten(0, (len(images), len(steps))).double().numpy()


@pytest.mark.parametrize("copies", ["averaged", "apart"])
@pytest.mark.parametrize("timesteps", ["uniform", "visible"])
@pytest.mark.parametrize("layers", ["usual", "later"])
def test_gradients_are_those_that_the_record_says(copies: str, timesteps: str, layers: str) -> None:
    """With a formula without a kernel, that shows the rows it is given."""
    seen: list[tuple[Array, Array]] = []

    def show(vectors: Vectors, damping: float) -> Values:
        seen.append((vectors.train.at(range(len(TRAIN))).double().numpy(), vectors.queries.astype(np.float64)))
        return np.zeros((len(vectors.queries), len(vectors.train)), np.float32)

    needs = Gradients(copies=copies, timesteps=timesteps, layers=layers, projection="identity")  # type: ignore[arg-type]
    method = Method("shown", "shows what it is given", needs, show)
    dtrak.attribute(tiny.unet(), TRAIN, QUERIES, method, timesteps=2)
    steps = timesteps_of(tiny.unet(), 2, timesteps)
    parameters = {"usual": "", "later": LATE}[layers]
    for found, images in zip(seen[0], (TRAIN, QUERIES), strict=True):
        expected = gradients_at(steps, images, parameters)
        assert_close(found, expected.mean(1, keepdims=True) if copies == "averaged" else expected)


def test_a_kernel_may_be_a_function(tmp_path: Path) -> None:
    """Here the one of this package, given as its name and as a function; `auto` finds λ as for trak."""
    from dtrak.kernels import KERNELS

    plain = scored("trak", damping="auto")
    for kernel in ("ridge", KERNELS["ridge"]):
        assert_close(scored(replace(METHODS["trak"], name="own", kernel=kernel), damping="auto").values, plain.values)
    with pytest.raises(UsageError, match="unknown kernel 'nothing'"):
        scored(replace(METHODS["trak"], name="own", kernel="nothing"))


def test_objectives_apart_are_side_by_side_in_one_kernel() -> None:
    needs = Gradients(("simple", "avg"), copies="apart", projection="identity")
    found = scored(Method("both", "two objectives in one kernel", needs, kernel_scores, Ridge("rows")))
    steps = timesteps_of(tiny.unet(), 2, "uniform")
    train, queries = (
        np.concatenate([gradients_at(steps, images, SMALL, objective) for objective in ("simple", "avg")], axis=1)
        for images in (TRAIN, QUERIES)
    )
    flat = train.reshape(-1, train.shape[2])
    inverse = np.linalg.inv(flat.T @ flat + LAMBDA * np.eye(flat.shape[1]))
    assert_close(found.values, np.einsum("qck,kl,ncl->qn", queries, inverse, train))
