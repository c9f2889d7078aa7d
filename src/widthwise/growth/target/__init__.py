"""The config of a grown model: the requested sizes with the constants of the old model."""
