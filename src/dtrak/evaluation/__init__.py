"""Measure how far scores can be trusted: compare them with models that were retrained without some images."""

from typing import TYPE_CHECKING, Any

from dtrak.evaluation.lds import bootstrap, evaluate_lds, lds

if TYPE_CHECKING:
    from dtrak.evaluation.own_benchmark import OwnBenchmark, rows_without

__all__ = ["OwnBenchmark", "bootstrap", "evaluate_lds", "lds", "rows_without"]


def __getattr__(name: str) -> Any:
    """Import on first use: a training loop needs torch and diffusers, the formulas do not."""
    if name in ("OwnBenchmark", "rows_without"):
        from dtrak.evaluation import own_benchmark

        return getattr(own_benchmark, name)
    raise AttributeError(f"module 'dtrak.evaluation' has no attribute {name!r}")
