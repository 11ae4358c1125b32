"""Measure how far scores can be trusted: compare them with models that were retrained without some images."""

from dtrak.evaluation.lds import bootstrap, lds

__all__ = ["bootstrap", "lds"]
