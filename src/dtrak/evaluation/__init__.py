"""How far scores can be trusted: what they predict about models that were trained on other images."""

from dtrak.evaluation.lds import bootstrap, lds

__all__ = ["bootstrap", "lds"]
