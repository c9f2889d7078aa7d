"""What transformers runs: two files that import nothing of this package, so that they can leave with a model."""
