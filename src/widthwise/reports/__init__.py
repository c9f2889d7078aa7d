"""Reports of comparisons and runs. They read run directories, never models."""
