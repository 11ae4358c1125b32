"""Runs: recipes, training, drawing pictures, and the folder of a run that keeps all results."""
