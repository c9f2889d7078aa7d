"""Compares a grown model with the old one: same function, same gradients, and new entries that learn."""
