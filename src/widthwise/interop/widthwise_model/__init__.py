"""The model that transformers runs: two files that import nothing of this package, so that exports can carry them."""
