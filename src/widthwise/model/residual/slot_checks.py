"""Which layers can share a stream of slots, and how they can begin."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
        raise ValueError(
            f"n_slots: got {n_slots}; must be at least the {widest} blocks of {residual.slot_width} of the widest layer"
        )
    if widest > residual.n_owned_slots:
        raise ValueError(f"n_owned_slots: got {residual.n_owned_slots}; the widest layer has {widest} blocks")
    if len(set(counts)) > 1:
        _check_no_turns(residual)
    _check_tiling(residual, counts[0])
    _check_no_twins(residual, counts)


def _check_no_turns(residual: "HyperConnectionsConfig") -> None:
    for name, (value, instead) in IN_TURN.items():
        if getattr(residual, name) == value:
            raise ValueError(f"{name}: got {value}; with layers of different widths use {instead}")


def _check_tiling(residual: "HyperConnectionsConfig", n_fractions: int) -> None:
    n_slots = residual.n_slots
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


def _check_no_twins(residual: "HyperConnectionsConfig", counts: Sequence[int]) -> None:
    """Slots that start equal, take equal updates and are not read stay equal."""
    n_spare = residual.n_slots - residual.n_owned_slots
    n_distinct = 0 if residual.write_init == "slice" else math.lcm(*counts)
    if residual.embedding == "pad" and n_spare > n_distinct:
        raise ValueError(
            f"embedding: got pad; of the {n_spare} slots that no layer owns only {n_distinct} would ever differ, "
            "since all start at 0; use direct, expand or slot"
        )
    if residual.embedding == "copies" and residual.read_init == "first" and residual.n_slots > 2 * counts[0]:
        raise ValueError("embedding: got copies; those that nobody reads would stay equal; use read_init: in_turn")
