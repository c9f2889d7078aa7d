"""Fused operations. Each file has a readable reference, which defines the operation, its fast forms and the choice."""
