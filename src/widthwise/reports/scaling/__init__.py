"""The page of a fit of scaling laws: its figures and tables."""
