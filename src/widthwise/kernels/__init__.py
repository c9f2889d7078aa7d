"""Fused operations. Each file has a readable reference, its fast forms, and the choice among them."""
