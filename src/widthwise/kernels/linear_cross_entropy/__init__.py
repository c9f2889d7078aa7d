"""Head and cross-entropy without ever holding all logits."""

from widthwise.kernels.linear_cross_entropy.fused import linear_cross_entropy

__all__ = ["linear_cross_entropy"]
