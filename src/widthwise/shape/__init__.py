"""Widths of layers and their costs, without weights."""
