"""Numbers before weights: how wide each layer is, and what that costs."""
