"""Which old layer, coordinate or head each new one comes from."""
