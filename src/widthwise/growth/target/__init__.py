"""The config of a grown model: the sizes asked for, the constants of the old model."""
