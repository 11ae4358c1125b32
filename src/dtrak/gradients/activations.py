"""How many bytes a noised copy of an image takes between its forward and its backward pass."""

from dtrak.gradients.backward import gradient_of_the_batch
from dtrak.models import DiffusionModel
from dtrak.models.conditions import Condition
from dtrak.models.memory import kept_bytes, one_image


def activation_bytes(model: DiffusionModel, condition: Condition | None = None) -> int:
    """What autograd keeps of one copy between the forward and the backward pass, for what is trained of the model.

    `condition` is that of one image, each [1, …].
    """
    image = one_image(model, condition or {})
    with gradient_of_the_batch(model.network, set(model.parameters()), lambda name, gradient: None):
        return kept_bytes(model.network, lambda: model.predict_target(*image))
