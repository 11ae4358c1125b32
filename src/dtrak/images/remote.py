"""Images in a folder on other machines that fsspec can open, such as s3://bucket/images."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from dtrak.errors import UsageError
from dtrak.images.found import IMAGE_EXTENSIONS, FoundImages
from dtrak.images.metadata import METADATA_FILES, metadata_columns
from dtrak.images.pictures import Picture, file_errors


@dataclass(frozen=True)
class RemoteFile:
    """A file that any process with the same access can read."""

    url: str

    def __call__(self) -> bytes:
        import fsspec

        with fsspec.open(self.url, "rb") as file:
            content: bytes = file.read()
        return content


def remote_folder(source: str) -> FoundImages:
    """Find the images of a folder with an address such as s3://bucket/images."""
    import fsspec

    with file_errors(source, UsageError):
        system, root = fsspec.core.url_to_fs(source)
        found = [PurePosixPath(path) for path in system.find(root)]
        above = PurePosixPath(root)
        if found == [above]:
            above = above.parent  # the address is that of an image
        files = {path: path.relative_to(above) for path in found}
    visible = {path: name for path, name in files.items() if not any(part.startswith(".") for part in name.parts)}
    images = sorted(path for path in visible if path.suffix.lower() in IMAGE_EXTENSIONS)
    if not images:
        raise UsageError(f"no images in {source}: looked for {', '.join(IMAGE_EXTENSIONS)}")

    def read(path: PurePosixPath) -> bytes:
        return RemoteFile(system.unstrip_protocol(str(path)))()

    columns: dict[str, Any] = {}
    if metadata := sorted(path for path in visible if path.name in METADATA_FILES):
        columns = metadata_columns(images, metadata, read)
    elif all(len(visible[path].parts) > 1 for path in images):
        columns["label"] = np.array([path.parent.name for path in images])
    places = [RemoteFile(system.unstrip_protocol(str(path))) for path in images]
    ids = np.array([visible[path].as_posix() for path in images])
    return FoundImages(ids, columns, [Picture(place.url, place, place) for place in places])
