"""Function-preserving growth: a model becomes a larger one that computes the same. Source: arXiv:2308.06103."""
