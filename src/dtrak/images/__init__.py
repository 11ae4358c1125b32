"""Images come from the embedded digits, folders, .npz files, Hugging Face data sets and published collections."""

from dtrak.images.images import Images, load_images, read_ids
from dtrak.images.selection import Selection

__all__ = ["Images", "Selection", "load_images", "read_ids"]
