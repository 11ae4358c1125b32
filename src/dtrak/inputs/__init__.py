"""Make the inputs of formulas: pixels, embeddings, gradients, or losses under retrained models.

Each kind of input has a class, a `Source`. It says what it needs and what it costs, checks that what it needs is there,
and makes the arrays that formulas compute scores from.
"""
