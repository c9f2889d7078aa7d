"""A config, what it costs, and the module, side by side."""
