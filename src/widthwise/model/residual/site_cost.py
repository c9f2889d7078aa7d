"""What one site of hyper-connections costs."""

from dataclasses import replace
from typing import Any

from widthwise.model.cost import Cost, linear, vector

N_SCALES = 2
"""Scales of a site where reads and carries share one, and writes another."""


def site_cost(
    slot_width: float,
    n_slots: int,
    n_read: Any,
    n_write: Any,
    dynamic: bool,
    state_every: int = 1,
    writes: str = "all",
    scale: str = "entries",
) -> Cost:
    """Cost of one site; n_read and n_write need not be whole. FLOPs of the slot norm are not counted, as for any norm.

    The last two: see `HyperConnectionOptions`. Slots that take one block each have fewer parameters, and the products
    of all. Kept for the backward pass: the update and, on average, one state in state_every.
    """
    n_coefficients = n_read + n_slots + n_write
    n_learned = n_coefficients if writes == "all" else n_read + n_slots + 1
    mixing = Cost(
        flops=2 * n_slots * n_coefficients * slot_width,
        activation_elements=n_write * slot_width,
        activation_fp32_elements=n_slots * slot_width / state_every,
    )
    static = vector(n_slots * n_learned) + mixing
    if not dynamic:
        return static
    matrix = slot_width * n_learned
    projection = replace(linear(slot_width, n_coefficients, n_slots), params=matrix, active_params=matrix)
    n_scales = n_slots * n_learned if scale == "entries" else N_SCALES
    return static + vector(n_scales + slot_width) + projection
