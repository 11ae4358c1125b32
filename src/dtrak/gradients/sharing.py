"""Which images share their noise: all of them, none, or those at the same place of a batch.

- `shared`: at a timestep, every image has the same noise.
- `per-image`: every image has noise of its own.
- `by-place:52:1000`: images are taken in shards of 1,000, and each shard in batches of 52. Images at the same place of
  their batches share their noise, training images and queries alike. The program of the paper's authors does this,
  because it sets the seed anew for each batch.
"""

import re
from dataclasses import dataclass

from dtrak.checks import MOST, shortened
from dtrak.errors import UsageError

SHARED, OWN = "shared", "per-image"
BY_PLACE = re.compile(r"by-place:([1-9][0-9]{0,8})(?::([1-9][0-9]{0,8}))?")
SHARD = 1000  # unless the user says otherwise


@dataclass(frozen=True)
class Places:
    """Batches and shards of images."""

    batch: int
    shard: int = SHARD

    def of(self, row: int) -> int:
        """Return the place of a row of the images in its batch."""
        return row % self.shard % self.batch


def parse_sharing(text: str) -> str | Places:
    """Read `shared`, `per-image`, `by-place:BATCH` or `by-place:BATCH:SHARD`."""
    if text in (SHARED, OWN):
        return text
    match = BY_PLACE.fullmatch(text)
    if match is None:
        raise UsageError(f"noise {shortened(text)}: give shared, per-image, by-place:BATCH or by-place:BATCH:SHARD")
    places = Places(int(match[1]), int(match[2] or SHARD))
    if max(places.batch, places.shard) > MOST["batch_size"]:
        raise UsageError(f"noise {shortened(text)}: a batch or a shard has at most {MOST['batch_size']:,} images")
    return places
