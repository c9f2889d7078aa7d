"""The tables and figures of the papers: what is printed, what we count, what we measured."""

from pathlib import Path

ITEMS = Path(__file__).with_name("items")
"""Folder of the items, one file each."""
POINTS = Path(__file__).with_name("points")
"""Folder of the points that the papers print, as tables."""
