"""Experiments of more than one run: comparisons, sweeps, ladders, scaling laws."""
