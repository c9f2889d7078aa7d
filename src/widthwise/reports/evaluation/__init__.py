"""The page of an evaluation of several models."""
