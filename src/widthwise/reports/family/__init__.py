"""The page of a family."""
