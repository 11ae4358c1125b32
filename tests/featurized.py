"""The features of images in a folder, without a question around them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dtrak import DiffusionModel
from dtrak.features.featurizing import featurize as featurize_inputs
from dtrak.features.model_inputs import ModelInputs, model_inputs
from dtrak.features.spec import Spec
from dtrak.features.store import FeatureStore
from dtrak.gradients.objectives import get_objective
from dtrak.images.images import Images


def featurize(
    model: DiffusionModel,
    images: Images | ModelInputs,
    objectives: Sequence[str],
    spec: Spec,
    folder: Path,
    name: str = "train",
    engine: Any = None,
    **how: Any,
) -> dict[str, FeatureStore]:
    """The stores `folder/name-OBJECTIVE-…`."""
    inputs = model_inputs(model, images)
    part = {"model": model.fingerprint, "images": inputs.fingerprint, "spec": spec.facts}
    places = {one: (folder / f"{name}-{one}", {**part, "objective": one}) for one in objectives}
    return featurize_inputs(
        model, inputs, spec, {one: get_objective(one) for one in objectives}, places, engine=engine, **how
    )
