"""Objectives are the functions ℓ(ε_θ, ε) whose gradients are the features of images.

There are the seven of the paper, and a mixture of two of them. Each takes the predictions ε_θ [B, …], the noises
ε [B, …] and the ELBO weights [B] of B noised copies, and returns ℓ [B]. For a flow, v_θ and v take the places of ε_θ
and ε. To add an objective, write a function, and add a line to `OBJECTIVES`.
"""

import re
from functools import partial

import torch
from torch import Tensor

from dtrak.contracts import Objective
from dtrak.errors import UsageError
from dtrak.registry import Registry


def simple(predicted: Tensor, noise: Tensor, elbo_weights: Tensor) -> Tensor:
    """Return mean (ε_θ − ε)². This is the training loss, which TRAK uses."""
    return (predicted - noise).square().flatten(1).mean(1)


def elbo(predicted: Tensor, noise: Tensor, elbo_weights: Tensor) -> Tensor:
    """Return β_t² / (2 σ_t² α_t (1−ᾱ_t)) · mean (ε_θ − ε)²."""
    return elbo_weights * simple(predicted, noise, elbo_weights)


def square(predicted: Tensor, noise: Tensor, elbo_weights: Tensor) -> Tensor:
    """Return mean ε_θ², which D-TRAK uses."""
    return predicted.square().flatten(1).mean(1)


def avg(predicted: Tensor, noise: Tensor, elbo_weights: Tensor) -> Tensor:
    """Return mean ε_θ."""
    return predicted.flatten(1).mean(1)


def norm(predicted: Tensor, noise: Tensor, elbo_weights: Tensor, order: float) -> Tensor:
    """Return ‖ε_θ‖_p, where p is the `order`."""
    length: Tensor = torch.linalg.vector_norm(predicted.flatten(1), ord=order, dim=1)
    return length


def interpolated(predicted: Tensor, noise: Tensor, elbo_weights: Tensor, eta: float) -> Tensor:
    """Return η·square + (1−η)(simple − square). η = ½ gives half of TRAK's gradient, and η = 1 gives D-TRAK's."""
    squared = square(predicted, noise, elbo_weights)
    return eta * squared + (1 - eta) * (simple(predicted, noise, elbo_weights) - squared)


OBJECTIVES: Registry[Objective] = Registry(
    "objective",
    "dtrak.objectives",
    {
        "simple": simple,
        "elbo": elbo,
        "square": square,
        "avg": avg,
        "l1": partial(norm, order=1),
        "l2": partial(norm, order=2),
        "linf": partial(norm, order=torch.inf),
    },
)


def get_objective(name: str) -> Objective:
    """Return the objective of that name; `interpolated(0.3)` is between `simple` and `square`, with η = 0.3."""
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    found = re.fullmatch(r"interpolated\((\d+|\d*\.\d+)\)", name)
    if found is None or float(found[1]) > 1:
        known = ", ".join(OBJECTIVES)
        raise UsageError(f"unknown objective {name!r}: choose from {known} or interpolated(η) with η from 0 to 1")
    return partial(interpolated, eta=float(found[1]))
