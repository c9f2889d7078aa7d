"""Pages, CSV, LaTeX and terminal tables of comparisons."""
