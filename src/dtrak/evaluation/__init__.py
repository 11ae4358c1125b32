"""How far scores can be trusted: what they predict about models that were trained on other images."""
