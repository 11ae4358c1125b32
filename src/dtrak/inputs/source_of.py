"""The source that makes the arrays which a method's record asks for."""

from dtrak.inputs.embeddings import EmbeddingSource
from dtrak.inputs.gradients import GradientSource
from dtrak.inputs.outcomes import OutcomeSource
from dtrak.inputs.pixels import NoisedPixelSource, NoSource, PixelSource
from dtrak.inputs.task import Source
from dtrak.methods.method import Embeddings, Gradients, Method, NoisedPixels, Outcomes, Pixels


def source_of(method: Method) -> Source:
    """Return the source of a method's arrays."""
    match method.needs:
        case Gradients() as needs:
            return GradientSource(method, needs)
        case Pixels():
            return PixelSource()
        case NoisedPixels():
            return NoisedPixelSource()
        case Embeddings():
            return EmbeddingSource()
        case Outcomes():
            return OutcomeSource()
        case _:
            return NoSource()
