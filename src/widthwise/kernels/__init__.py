"""Fused operations. Each file has a readable reference, which defines the operation, its fast forms and the choice."""

from widthwise.kernels.attention import attention
from widthwise.kernels.grouped_swiglu import grouped_swiglu
from widthwise.kernels.hyper_connections import read_slots, write_slots
from widthwise.kernels.linear_cross_entropy import linear_cross_entropy
from widthwise.kernels.rms_norm import rms_norm
from widthwise.kernels.rotary import rotate
from widthwise.kernels.sliced_swiglu import bucketed_units, sliced_swiglu
from widthwise.kernels.swiglu import swiglu

__all__ = [
    "attention",
    "bucketed_units",
    "grouped_swiglu",
    "linear_cross_entropy",
    "read_slots",
    "rms_norm",
    "rotate",
    "sliced_swiglu",
    "swiglu",
    "write_slots",
]
