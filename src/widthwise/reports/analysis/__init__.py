"""Pages of analyses."""
