"""What entry and exit of an over-width stream cost; `over_width_module.py` has their modules and their source.

All functions: d_model, n_slots and slot_width of the stream -> the cost on top of what stands there anyway.
"""

from collections.abc import Callable
from typing import NamedTuple

from widthwise.model.cost import Cost, linear, vector

CostOfEnd = Callable[[int, int, int], Cost]


class EntrySizes(NamedTuple):
    """What a kind of entry takes."""

    has_wide_table: bool
    """Whether the embedding table is as wide as the stream, not as d_model."""
    cost: CostOfEnd
    """On top of the embedding table."""


def no_cost(d_model: int, n_slots: int, slot_width: int) -> Cost:
    """Rows are looked up, zeros or copies appended, or groups added up."""
    return Cost()


def expansion_cost(d_model: int, n_slots: int, slot_width: int) -> Cost:
    """A matrix from d_model to the whole stream."""
    return linear(d_model, n_slots * slot_width) + Cost(activation_elements=d_model)


def mixed_entry_cost(d_model: int, n_slots: int, slot_width: int) -> Cost:
    """Every slot is a mixture of the blocks of d_model."""
    return linear(d_model // slot_width, n_slots, slot_width) + Cost(activation_fp32_elements=d_model)


def reduction_cost(d_model: int, n_slots: int, slot_width: int) -> Cost:
    """A matrix from the whole stream to d_model, and the input that it keeps for the backward pass."""
    return linear(n_slots * slot_width, d_model) + Cost(activation_elements=n_slots * slot_width)


def mixed_reduction_cost(d_model: int, n_slots: int, slot_width: int) -> Cost:
    """Every block of d_model is a mixture of slots, which are kept for the backward pass."""
    return linear(n_slots, d_model // slot_width, slot_width) + Cost(activation_elements=n_slots * slot_width)


ENTRY_SIZES = {
    "direct": EntrySizes(True, no_cost),
    "expand": EntrySizes(False, expansion_cost),
    "slot": EntrySizes(False, mixed_entry_cost),
    "pad": EntrySizes(False, no_cost),
    "copies": EntrySizes(False, no_cost),
}
REDUCTION_COSTS: dict[str, CostOfEnd] = {"full": reduction_cost, "slot": mixed_reduction_cost, "sum": no_cost}


def group_norm_cost(kind: str, d_model: int, width: int) -> Cost:
    """The output is not counted, since the reduction keeps it; `layer` also keeps its output before the bias."""
    statistics = Cost(activation_fp32_elements=width // d_model)
    if kind == "layer":
        return vector(width) + vector(width) + statistics + Cost(activation_elements=width)
    return vector(width) + statistics
