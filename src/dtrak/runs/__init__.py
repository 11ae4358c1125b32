"""Runs: recipes, training, drawing pictures, and the folder that keeps it all."""
