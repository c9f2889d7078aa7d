"""Pages of runs, and the parts of a run that other pages show too."""
