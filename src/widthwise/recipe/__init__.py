"""The recipe, which has everything that a run needs, and computations on it without training."""
