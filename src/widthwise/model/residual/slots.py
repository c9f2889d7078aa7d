"""A stream of slots: which layers can share it, and what its ends cost."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from widthwise.model.cost import Cost, linear, vector

if TYPE_CHECKING:
    from widthwise.model.residual.hyper_connections import HyperConnectionsConfig

IN_TURN = {
    "write_init": ("cyclic", "tail_cyclic"),
    "read_init": ("in_turn", "first"),
    "writes": ("own", "all"),
    "embedding": ("copies", "slot"),
    "reduce": ("sum", "slot"),
}
"""Option -> its value that deals out blocks in turn, which would land where wider layers have others, and what serves
layers of different widths instead."""
TILING = {"embedding": "copies", "reduce": "sum", "reduce_init": "mean"}
"""Option -> its value that needs a stream of whole groups of d_model coordinates."""


def n_blocks(width: int, slot_width: int) -> int:
    """Raises ValueError where slots do not divide a width."""
    if width % slot_width:
        raise ValueError(f"slot_width: got {slot_width}; must divide every width, {width} too")
    return width // slot_width


def check_slots(residual: "HyperConnectionsConfig", counts: Sequence[int]) -> None:
    """Raises ValueError where the slots do not suit their users. counts: blocks of d_model, then of each layer."""
    n_slots, widest = residual.n_slots, max(counts)
    if n_slots < widest:
        blocks = f"{widest} blocks of {residual.slot_width}"
        raise ValueError(f"n_slots: got {n_slots}; must be at least the {blocks} of the widest layer")
    if widest > residual.n_owned_slots:
        raise ValueError(f"n_owned_slots: got {residual.n_owned_slots}; the widest layer has {widest} blocks")
    for name, (value, instead) in IN_TURN.items():
        if len(set(counts)) > 1 and getattr(residual, name) == value:
            raise ValueError(f"{name}: got {value}; with layers of different widths use {instead}")
    n_fractions = counts[0]
    if residual.group_norm is not None and n_slots % n_fractions:
        raise ValueError(
            f"group_norm: got {residual.group_norm}; its groups of {n_fractions} slots do not tile n_slots = "
            f"{n_slots}, so it must be none"
        )
    for name, value in TILING.items():
        if getattr(residual, name) == value and n_slots % n_fractions:
            raise ValueError(f"{name}: got {value}; groups of {n_fractions} slots do not tile n_slots = {n_slots}")
    if residual.reduce == "sum" and residual.reduce_init != "first":
        raise ValueError(f"reduce_init: got {residual.reduce_init}; reduce: sum has no weights, so it must be first")
    # Slots that start equal, take equal updates and are not read stay equal.
    n_spare = n_slots - residual.n_owned_slots
    n_distinct = 0 if residual.write_init == "slice" else math.lcm(*counts)
    if residual.embedding == "pad" and n_spare > n_distinct:
        raise ValueError(
            f"embedding: got pad; of the {n_spare} slots that no layer owns only {n_distinct} would ever differ, "
            "since all start at 0; use direct, expand or slot"
        )
    if residual.embedding == "copies" and residual.read_init == "first" and n_slots > 2 * n_fractions:
        raise ValueError("embedding: got copies; those that nobody reads would stay equal; use read_init: in_turn")


N_SCALES = 2
"""Scales of a site where reads and carries share one, and writes another."""


CostOfEnd = Callable[[int, int, int], Cost]
"""From d_model, n_slots and the slot width b."""
ENTRY_COSTS: dict[str, CostOfEnd] = {
    "expand": lambda d_model, n_slots, b: linear(d_model, n_slots * b) + Cost(activation_elements=d_model),
    "slot": lambda d_model, n_slots, b: linear(d_model // b, n_slots, b) + Cost(activation_fp32_elements=d_model),
}
"""Entry with a matrix from d_model to the stream, or with one that mixes blocks of d_model -> its cost on top of the
embedding table. The others look rows up, append zeros or copies."""
REDUCTION_COSTS: dict[str, CostOfEnd] = {
    "full": lambda d_model, n_slots, b: linear(n_slots * b, d_model) + Cost(activation_elements=n_slots * b),
    "slot": lambda d_model, n_slots, b: linear(n_slots, d_model // b, b) + Cost(activation_elements=n_slots * b),
    "sum": lambda d_model, n_slots, b: Cost(),
}
"""Reduction -> its cost; it keeps the slots for the backward pass if it has a matrix."""


def group_norm_cost(kind: str, d_model: int, width: int) -> Cost:
    """The output is not counted, since the reduction keeps it; `layer` also keeps its output before the bias."""
    cost = vector(width) + Cost(activation_fp32_elements=width // d_model)
    return cost + vector(width) + Cost(activation_elements=width) if kind == "layer" else cost
