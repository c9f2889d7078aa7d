"""The choices of a recipe for computing a model."""

from typing import Literal

Precision = Literal["fp32", "bf16"]
"""Type of the matrix products of a forward pass."""
ActivationCheckpointing = Literal["none", "layer", "selective"]
"""Layers that the backward pass runs again instead of keeping; see `model.recompute`."""
