"""The page of an analysis: its figures and tables."""
