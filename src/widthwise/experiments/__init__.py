"""Questions that take more than one run."""
