"""Reports as pages, CSV and LaTeX, made from records and run directories, never models. One folder per kind of page."""
