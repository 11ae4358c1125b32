"""Measure how many bytes a noised copy of an image takes between its forward and its backward pass."""

from dtrak.gradients.backward import gradient_of_the_batch
from dtrak.models import DiffusionModel
from dtrak.models.conditions import Condition
from dtrak.models.memory import kept_bytes, one_image


def activation_bytes(model: DiffusionModel, condition: Condition | None = None) -> int:
    """Return how many bytes autograd keeps for one copy, for gradients of the model's trained parameters.

    `condition` holds the condition of one image; each of its tensors is [1, …].
    """
    image = one_image(model, condition or {})
    with gradient_of_the_batch(model.network, set(model.parameters()), lambda name, gradient: None):
        return kept_bytes(model.network, lambda: model.predict_target(*image))
