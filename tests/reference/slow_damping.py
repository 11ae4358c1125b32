"""The rules for λ, from the eigenvalues of the whole matrix of each λ that they try."""

from collections.abc import Callable

import numpy as np

from reference.slow_gradients import Array


def eigenvalues(features: Array) -> Array:
    """The eigenvalues of ΦᵀΦ that are not zero, for Φ [N, d]."""
    found = np.linalg.svd(features, compute_uv=False)
    return found[found > 1e-6 * found[0]] ** 2


def dimension(spectrum: Array, damping: float) -> float:
    """d(λ) = Σ s / (s + λ), how many directions a kernel keeps."""
    return float((spectrum / (spectrum + damping)).sum())


def damping_of(spectrum: Array, wanted: float) -> float:
    """The λ at which d(λ) is this, by bisection of log λ."""
    low, high = np.log(spectrum.min()) - 40, np.log(spectrum.max()) + 40
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if dimension(spectrum, np.exp(middle)) > wanted else (low, middle)
    return float(np.exp(low))


def absolute(given: float | str, spectrum: Array, images: int, automatic: Callable[[], float], size: int = 0) -> float:
    """λ of a kernel with these eigenvalues, which was fitted on so many images; a fraction is one of their mean."""
    if given == "auto":
        return automatic()
    if given == "spectrum":
        return damping_of(spectrum, min(0.1 * images, len(spectrum) / 2))
    if str(given).startswith("absolute:"):
        return float(str(given).removeprefix("absolute:"))
    return float(given) * spectrum.sum() / (size or images)


def by_agreement(features: Array, other: Array) -> float:
    """The λ at which the first keeps as many directions as the scores of both objectives agree on."""
    agreed = min(max(agreed_dimension(features, other), 0.05 * len(features)), 0.25 * len(features))
    return damping_of(eigenvalues(features), min(agreed, len(eigenvalues(features)) / 2))


def by_rows(features: Array) -> float:
    """The λ that keeps 15 % as many directions as there are rows, and two thirds of all at most."""
    spectrum = eigenvalues(features)
    return damping_of(spectrum, min(0.15 * len(features), 2 / 3 * len(spectrum)))


def agreed_dimension(features: Array, other: Array) -> float:
    """The largest d at which another objective's scores fit best when they keep at least 0.9 d, of 24 that are tried.

    Every training image is a query; its score for itself does not count. (Of more than 100 images, a sample is taken.)
    """
    most = min(len(eigenvalues(features)), len(eigenvalues(other))) / 2
    tried = np.geomspace(min(4, most / 2), most, 24)

    def scores(phi: Array, kept: float) -> Array:
        """Standardised in each row, with zeros on the diagonal."""
        gram = phi @ phi.T
        found = np.linalg.solve(gram + damping_of(eigenvalues(phi), kept) * np.eye(len(phi)), gram)
        np.fill_diagonal(found, np.nan)
        found -= np.nanmean(found, axis=1, keepdims=True)
        return np.nan_to_num(found / np.sqrt(np.nansum(found**2, axis=1, keepdims=True)))

    def best(curve: Array) -> float:
        """Where a curve over the grid is largest, on the parabola through three points."""
        top = min(max(int(curve.argmax()), 1), len(curve) - 2)
        before, at, after = curve[top - 1 : top + 2]
        bend = before - 2 * at + after
        return top + (min(max((before - after) / (2 * bend), -1), 1) if bend < 0 else 0)

    own, others = ([scores(phi, kept) for kept in tried] for phi in (features, other))
    agreement = np.array([[float((one * two).sum()) for two in others] for one in own])
    step = np.log(tried[1] / tried[0])
    excess = [(best(agreement[i]) + best(agreement[:, i]) - 2 * i) / 2 * step - np.log(0.9) for i in range(24)]
    last = max((i for i in range(24) if excess[i] >= 0), default=0)
    if last == 23 or excess[last] < 0:
        return float(tried[last])
    return float(tried[last] * np.exp(step * excess[last] / (excess[last] - excess[last + 1])))
