"""The damping λ that scores were computed with, in numbers: what `auto` chose, and how many directions it keeps."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtrak.wording import plain

if TYPE_CHECKING:
    from dtrak.inputs.arrays import TrainingKernel
    from dtrak.kernels.damping import Damping


@dataclass(frozen=True)
class UsedDamping:
    """The λ of a method. For several models or objectives, it is that of the first."""

    rule: str  # auto, spectrum, relative or absolute
    relative: float  # λ ÷ the mean eigenvalue
    absolute: float  # λ
    kept: float  # the effective dimension d(λ): how many directions the kernel keeps
    rank: int  # how many directions there are

    @classmethod
    def of(cls, training: "TrainingKernel", damping: "Damping") -> "UsedDamping":
        """Return the numbers of a damping for a kernel."""
        from dtrak.kernels.preconditioner import effective_dimension, rank

        absolute, kernel = training.absolute(damping), training.kernel
        kept = float(effective_dimension(kernel, absolute))
        return cls(damping.kind, training.relative(damping), absolute, kept, rank(kernel))

    def __str__(self) -> str:
        """Return it in words: auto: λ = 0.0123 × mean eigenvalue, which keeps 150 of 1,000 directions."""
        rule = f"{self.rule}: " if self.rule in ("auto", "spectrum") else ""
        kept = f"keeps {round(self.kept):,} of {self.rank:,} directions"
        return f"{rule}λ = {plain(self.relative)} × mean eigenvalue, which {kept}"
