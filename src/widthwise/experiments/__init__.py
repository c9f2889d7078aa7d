"""Experiments of more than one run: comparisons, sweeps, ladders, families, scaling laws."""
