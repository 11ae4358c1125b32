"""Methods without a kernel: they take the dot product or the cosine of pixels, embeddings or gradients."""

import numpy as np

from dtrak.inputs.arrays import Vectors
from dtrak.inputs.copies import UnitMeans
from dtrak.inputs.embeddings import Embeddings
from dtrak.inputs.gradients import Gradients
from dtrak.inputs.pixels import Pixels
from dtrak.kernels.damping import Damping
from dtrak.kernels.preconditioner import Array
from dtrak.methods.method import Method, Values


def dot(vectors: Vectors, damping: Damping) -> Values:
    """τ(x)_n = φ(x)·φ_n."""
    return _products(vectors).astype(np.float32)


def cosine(vectors: Vectors, damping: Damping) -> Values:
    """τ(x)_n = φ(x)·φ_n / (‖φ(x)‖ ‖φ_n‖), and 0 where one of the two is zero."""
    train = np.concatenate([np.linalg.norm(block.double().numpy(), axis=1) for _, block in vectors.train.blocks()])
    queries = np.linalg.norm(vectors.queries.astype(np.float64), axis=1)
    norms = np.outer(queries, train)
    return np.divide(_products(vectors), norms, out=np.zeros_like(norms), where=norms > 0).astype(np.float32)


def _products(vectors: Vectors) -> Array:
    """Return φ(x)·φ_n in float64, [Q, N]."""
    queries = vectors.queries.astype(np.float64)
    return np.concatenate([queries @ block.double().numpy().T for _, block in vectors.train.blocks()], axis=1)


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
    UnitMeans(models="checkpoints"),
    dot,
)
