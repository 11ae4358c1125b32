"""What formulas score from: pixels, embeddings, gradients, outcomes of retrained models. Each is a class, a `Source`,
that says what it needs and what it costs, checks that it is there, and makes the arrays that formulas see."""
