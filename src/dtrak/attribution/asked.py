"""Remember beside kept features what was asked with them, so that an index can be made from their folder alone."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dtrak.checks import first_mistake
from dtrak.errors import DtrakError, UsageError
from dtrak.files import full_name, write_json
from dtrak.images.sources import full_source
from dtrak.inputs.settings import Settings

FILE = "asked.json"


@dataclass(frozen=True)
class Asked:
    """The model, the training images and the settings of an attribution, as they were given."""

    model: str
    train: str
    methods: list[str]
    settings: dict[str, Any]
    lora: str | None = None
    prompt: str | None = None
    size: int | None = None

    @property
    def of_model(self) -> tuple[str, str | None, str | None]:
        """Return what `load_model` takes."""
        return self.model, self.lora, self.prompt


def remember(
    folder: Path,
    model: tuple[str, str | None, str | None],
    train: str,
    size: int | None,
    methods: Sequence[str],
    settings: Settings,
) -> None:
    """Write asked.json into a folder of features."""
    source, lora, prompt = model
    found = Asked(
        full_name(source),
        full_source(train),
        list(methods),
        settings.plain(),
        None if lora is None else full_name(lora),
        prompt,
        size,
    )
    write_json(folder / FILE, asdict(found))


def remembered(folder: Path) -> Asked:
    """Read asked.json."""
    path = folder / FILE
    try:
        return TypeAdapter(Asked).validate_python(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise UsageError(
            f"{folder} does not say which model and images its features are of: it has no {FILE}, which "
            f"`dtrak attribute --model … --train … --cache {folder}` writes"
        ) from None
    except ValidationError as error:
        raise DtrakError(f"{path} does not say what was asked: {first_mistake(error)}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DtrakError(f"{path} does not say what was asked: {error}") from None
