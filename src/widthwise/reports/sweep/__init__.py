"""The page of a sweep: its figures and tables."""
