"""Statistics of what a finished model computes inside, taken from outside while it runs unchanged."""
