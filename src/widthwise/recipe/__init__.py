"""The recipe: everything that a run needs, and what follows from it before any training."""
