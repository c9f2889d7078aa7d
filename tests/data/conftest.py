"""Hypothesis without a time limit an example: the tests share a machine with others and touch the disk."""

from hypothesis import settings

settings.register_profile("data", deadline=None)
settings.load_profile("data")
