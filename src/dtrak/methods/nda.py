"""NDA needs no model: it asks which training image a noised patch of the query comes from.

The best possible denoiser has a closed form. If x_t = s y + σ ε, and all training images y_n are equally likely, then

    P(y_n | x_t) = exp(−‖x_t − s y_n‖² / 2σ²) / Σ_m exp(−‖x_t − s y_m‖² / 2σ²)

and its estimate of the image is the mean of the training images with these weights. Networks that look at patches, and
do the same at every place, compute this for the patches of all training images instead of whole images.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from dtrak.contracts import NoisedQueries, Values
from dtrak.methods.method import Method, NoisedPixels
from dtrak.progress import progress_bar

SCALES = (1, 2)  # patches are compared in the images as they are, and in images of half the size
SIDE, LEAST_SIDE = 7 / 32, 3  # the side of a patch is this part of the image's side, but at least three pixels
KEPT_BYTES, PRODUCT_BYTES = 256 << 20, 4 << 20  # of the results for several queries, and of one product of patches


def posterior(noised: NoisedQueries, damping: float) -> Values:
    """τ(x)_n = mean over copies, scales and places p of  Σ_q P(patch q of y_n | patch p of x_t)."""
    copies, queries = noised.queries.shape[:2]
    with progress_bar("patches", len(SCALES) * copies * queries, "noised queries") as advance:
        advance(0)
        total = torch.zeros(copies * queries, len(noised.train))
        for scale in SCALES:
            for rows, weights in _weights(noised, scale):
                total[rows.start : rows.stop] += weights
                advance(len(rows))
    found: Values = (total / len(SCALES)).unflatten(0, (copies, queries)).mean(0).numpy()
    return found


def _weights(noised: NoisedQueries, scale: int) -> Iterator[tuple[range, Tensor]]:
    """Yield the weight of every training image for some of the noised queries: (noised queries, [b, N])."""
    shape, number = noised.queries.shape[2:], noised.queries.shape[1]
    copies = noised.queries.flatten(0, 1)
    asked, alike = patches(copies, scale), comparable(copies, scale)  # [copies·Q, P, d], [P, P]
    places, images = asked.shape[1], len(noised.train)
    at_once = max(1, KEPT_BYTES // (4 * places * images))
    step = max(1, PRODUCT_BYTES // (4 * places**2))
    for start in range(0, len(asked), at_once):
        rows = range(start, min(start + at_once, len(asked)))
        logs = torch.empty(len(rows), places, images)
        for wanted, block in noised.train.blocks():
            for first in range(0, len(block), step):
                train = patches(block[first : first + step].view(-1, *shape), scale)
                part = slice(wanted.start + first, wanted.start + first + len(train))
                for place, row in enumerate(rows):
                    signal, noise = noised.signal[row // number], noised.noise[row // number]
                    logs[place, :, part] = _log_weights(asked[row], signal * train, noise, alike)
        yield rows, logs.softmax(2).mean(1)


def _log_weights(query: Tensor, train: Tensor, noise: Tensor, alike: Tensor) -> Tensor:
    """Return log Σ_q exp(−‖x_p − s y_q‖² / 2σ²) over the places q of each image, [P, b].

    `query` has the patches x_p [P, d], `train` has s y_q [b, P, d], and `alike` [P, P] is −∞ for places that are not
    compared.
    """
    products = query @ train.flatten(0, 1).T  # [P, b·P]
    squares = query.square().sum(1)[:, None] + train.square().sum(2).flatten() - 2 * products
    logs = (squares.clamp(min=0) / (-2 * noise.square())).unflatten(1, train.shape[:2])
    return torch.logsumexp(logs + alike[:, None], 2)


def patches(images: Tensor, scale: int) -> Tensor:
    """Return the patch around each pixel of images [B, C, H, W] at 1/`scale` of their size, [B, P, d].

    Smaller images have the means of squares of pixels, times `scale`, so that their noise is as large. At the border,
    patches are filled up with zeros.
    """
    small, side = scale * F.avg_pool2d(images, scale), side_of(images)
    return F.unfold(small, side, padding=side // 2).transpose(1, 2)


def side_of(images: Tensor) -> int:
    """Return the side of a patch, an odd number of pixels. It is the same at all scales."""
    return max(LEAST_SIDE, 2 * round((SIDE * min(images.shape[2:]) - 1) / 2) + 1)


def comparable(images: Tensor, scale: int) -> Tensor:
    """Return [P, P] with 0 for two places of which the same part of the patch is filled up, and −∞ for others."""
    height, width = (size // scale for size in images.shape[2:])
    reach = side_of(images) // 2
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    to_border = torch.stack([rows, height - 1 - rows, columns, width - 1 - columns], 2).clamp(max=reach).flatten(0, 1)
    return torch.where((to_border[:, None] == to_border).all(2), 0.0, -torch.inf)


NDA = Method(
    "nda",
    "how probably each patch of the noised query comes from the image; no gradients (NDA)",
    NoisedPixels(),
    posterior,
)
