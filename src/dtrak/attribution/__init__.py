"""The one call, `attribute`, and its answer: scores, the strongest images, credit by group."""
