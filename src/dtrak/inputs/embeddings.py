"""Make embeddings of images with an image encoder, and keep them in the folder of the features."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtrak.contracts import Vectors
from dtrak.features.encoders import Encoder, embed, load_encoder
from dtrak.files import as_npy, write_bytes
from dtrak.images.images import Images
from dtrak.inputs.task import Source, Task
from dtrak.kernels import ArrayRows
from dtrak.noise import stable_hash

KEY = "embeddings"  # the name under which a task keeps them


@dataclass(frozen=True)
class EmbeddingSource(Source):
    """Each image is a vector: its embedding."""

    needs: str = "an image encoder"
    cost: str = "a pass of the encoder per image"

    def check(self, task: Task) -> None:
        _encoder(task)

    def inputs(self, task: Task) -> Iterator[Vectors]:
        yield task.once(KEY, lambda: self._vectors(task))

    def seconds(self, task: Task) -> float:
        list(self.inputs(task))
        return task.seconds(KEY)

    def _vectors(self, task: Task) -> Vectors:
        train = _embedded(task, task.train, task.folder)
        return Vectors(ArrayRows(train), _embedded(task, task.queries, task.folder_of_queries)[:, None])


def _encoder(task: Task) -> Encoder:
    return task.once_for_training("encoder", lambda: load_encoder(task.settings.encoder, str(task.model.device)))


def _embedded(task: Task, images: Images, folder: Path) -> NDArray[np.float32]:
    """Return the embeddings [N, d] of images. Compute them if the folder does not have them."""
    path = folder / f"embeddings-{stable_hash(task.settings.encoder):016x}-{images.fingerprint}.npy"
    if not path.exists():
        write_bytes(path, as_npy(embed(_encoder(task), images)))
    return np.asarray(np.load(path, allow_pickle=False))
