"""Pages of fitted laws."""
