"""The page of several comparisons: which effects change sign with size or tokens."""
