"""Facts about a benchmark that other findings are read against: how noisy its losses are, what the best λ keeps."""

from itertools import combinations

import numpy as np
from findings import Finding
from study import Study

from dtrak.evaluation.lds import mean_losses, spearman
from dtrak.kernels import ArrayRows, Damping, Ridge
from dtrak.tables import Cell, Entry, Table


def seeds(study: Study) -> Finding:
    """How well two trainings on the same half agree, and so the mean of S with that of endlessly many."""
    rows: list[list[Entry]] = []
    for kind in study.query_kinds:
        losses = study.benchmark.losses(kind)
        each = [mean_losses(losses[:, [seed]]) for seed in range(losses.shape[1])]
        if len(each) == 1:
            return
        rho = float(np.mean([spearman(one, other).mean() for one, other in combinations(each, 2)]))
        count = len(each)
        reach = 100 * (count * rho / (1 + (count - 1) * rho)) ** 0.5
        rows.append([kind, Cell(rho, f"{rho:.2f}"), Cell(reach, f"{reach:.0f}")])
    heads = ["queries", "ρ of two seeds", "perfect scores would reach, √(Sρ / (1 + (S − 1)ρ))"]
    yield Table(heads, rows, "How noisy the losses are")


def directions(study: Study) -> Finding:
    """The best λ in hindsight, and how many directions the kernel keeps with it."""
    names = ("simple", "square", "avg")
    train = study.features(names, timesteps=10)["train"]
    rows: list[list[Entry]] = []
    for name in names:
        found = study.measure(("d-trak",), objective=name, timesteps=10)["d-trak"]
        assert found.damping is not None
        kernel = Ridge.of(ArrayRows(train[name]))
        kept = kernel.dimension(Damping.parse(found.damping).absolute(kernel))
        cells = Cell(found.damping, f"{found.damping:.2g}"), Cell(kept, f"{kept:.0f}")
        rows.append([name, *cells, Cell(kept / len(kernel), f"{kept / len(kernel):.2f}")])
    heads = ["objective", "best λ ÷ mean eigenvalue", "directions d(λ)", "d ÷ images"]
    yield Table(heads, rows, "What the best λ keeps, K = 10, validation queries")
