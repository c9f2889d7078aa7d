"""The tables and figures of the papers, as they are printed, counted and measured."""
