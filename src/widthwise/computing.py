"""Options for computing a model."""

from typing import Literal

Precision = Literal["fp32", "bf16"]
"""Dtype of the matrix products of a forward pass."""
ActivationCheckpointing = Literal["none", "layer", "selective"]
"""Activations that the backward pass recomputes instead of saving; see `model.recompute`."""
