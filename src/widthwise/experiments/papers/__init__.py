"""The tables and figures of the papers: what is printed, what we count, what we measured."""
