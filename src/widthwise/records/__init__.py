"""Records that producers write and reports read, declared once: typed, frozen objects."""
