"""Pages, CSV and LaTeX, a folder for each kind of page. They read records and run directories, never models."""
