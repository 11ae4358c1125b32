"""Methods without a kernel: the dot product or the cosine of pixels, embeddings or gradients.

    τ(x)_n = φ(x)·φ_n,        or φ(x)·φ_n / (‖φ(x)‖ ‖φ_n‖)

Of several copies of an image, φ is the mean. TracIn (`tracin`), `gas` and Diffusion-ReTrac (`retrac`), whose copies
have length 1, are means over checkpoints of the training.
"""

import numpy as np

from dtrak.contracts import Array, Values, Vectors
from dtrak.methods.method import Embeddings, Gradients, Method, Pixels


def dot(vectors: Vectors, damping: float) -> Values:
    """τ(x)_n = φ(x)·φ_n."""
    return _products(vectors)[0].astype(np.float32)


def cosine(vectors: Vectors, damping: float) -> Values:
    """τ(x)_n = φ(x)·φ_n / (‖φ(x)‖ ‖φ_n‖), and 0 where one of the two is zero."""
    products, lengths = _products(vectors)
    norms = np.outer(np.linalg.norm(vectors.queries.mean(1, dtype=np.float64), axis=1), lengths)
    return np.divide(products, norms, out=np.zeros_like(norms), where=norms > 0).astype(np.float32)


def _products(vectors: Vectors) -> tuple[Array, Array]:
    """Return φ(x)·φ_n [Q, N] and ‖φ_n‖ [N] in float64."""
    queries, products, lengths = vectors.queries.mean(1, dtype=np.float64), [], []
    for _, block in vectors.train.blocks():
        mean = block.double().mean(1).numpy()
        products.append(queries @ mean.T)
        lengths.append(np.linalg.norm(mean, axis=1))
    return np.concatenate(products, axis=1), np.concatenate(lengths)


RAW_PIXEL_DOT = Method("raw-pixel-dot", "dot product of the images", Pixels(), dot)
RAW_PIXEL_COSINE = Method("raw-pixel-cosine", "cosine of the images", Pixels(), cosine)
CLIP_DOT = Method("clip-dot", "dot product of the images' embeddings", Embeddings(), dot)
CLIP_COSINE = Method("clip-cosine", "cosine of the images' embeddings", Embeddings(), cosine)
GRADIENT_DOT = Method("gradient-dot", "dot product of the gradients of the training loss", Gradients(), dot)
GRADIENT_COSINE = Method("gradient-cosine", "cosine of the gradients of the training loss", Gradients(), cosine)
TRACIN = Method("tracin", "the mean of gradient-dot over checkpoints", Gradients(models="checkpoints"), dot)
GAS = Method("gas", "the mean of gradient-cosine over checkpoints", Gradients(models="checkpoints"), cosine)
RETRAC = Method(
    "retrac",
    "tracin with the gradient of every noised copy at length 1 (Diffusion-ReTrac)",
    Gradients(copies="apart", unit=True, timesteps="visible", projection="factored", models="checkpoints"),
    dot,
)
