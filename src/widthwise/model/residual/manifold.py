"""Manifold-constrained hyper-connections: n slots as wide as a layer, carried by doubly stochastic matrices.

Source: mHC, Xie et al. 2025, arXiv:2512.24880, in the form of DeepSeek-V4; `carry: permutations` is mHC-lite,
arXiv:2601.05732. See docs/virtual_width.md for its formulas and growth.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import pydantic

from widthwise.config_io import options_of
from widthwise.model.cost import Cost, linear, vector
from widthwise.model.kinds import must_stay
from widthwise.model.residual.interface import ResidualConfig, ResidualTemplate, SlotLayout, register_residual
from widthwise.model.residual.slots import SlotOptions, SlotsConfig, mixing_cost
from widthwise.sizes import Count, NSlots

MAX_PERMUTED_SLOTS = 4
"""Most slots with `carry: permutations`: 4 have 24 permutations, 5 have 120."""


def n_carry_logits(carry: str, n_slots: int) -> int:
    """Return the number of logits of a carry matrix: one for each entry, or for each permutation."""
    return math.factorial(n_slots) if carry == "permutations" else n_slots**2


class ManifoldOptions(SlotOptions):
    """Options that a recipe and a resolved model share."""

    kind: Literal["manifold"] = "manifold"
    carry: Literal["sinkhorn", "permutations"] = "sinkhorn"
    """How the carry is made doubly stochastic. `sinkhorn`: columns and rows of a positive matrix are divided by their
    sums in turn, which leaves a small error. `permutations`: a weighted mean of all permutations of up to 4 slots,
    which is exact."""
    n_iterations: Count = 20
    """Number of divisions by column sums with `carry: sinkhorn`."""
    coefficient_eps: pydantic.NonNegativeFloat = 1e-6
    """Added to reads, and with `carry: sinkhorn` to the first matrix and all its sums."""
    scale_init: pydantic.NonNegativeFloat = 1.0
    """Initial value of the learned factors of the state-dependent part: 1 in DeepSeek-V4, 0.01 in the paper of mHC."""

    def site_cost(self, slot_width: float, n_slots: int) -> Cost:
        """Return the cost of one site. FLOPs of norm, sigmoids and divisions are not counted."""
        n_logits = 2 * n_slots + n_carry_logits(self.carry, n_slots)
        carry = Cost()
        if self.carry == "permutations":  # the product of weights and permutations
            carry = Cost(flops=2 * math.factorial(n_slots) * n_slots**2)
        mixing = mixing_cost(n_slots, 1 + n_slots + 1, slot_width, slot_width, self.state_every)
        return mixing + carry + linear(n_slots * slot_width, n_logits) + vector(n_logits + 3)  # 3 scales


class ManifoldConfig(ManifoldOptions, SlotsConfig):
    """A stream of n_slots slots, each as wide as every layer."""

    module = "widthwise.model.residual.manifold_module"
    always_mixes = True  # no finite logits give the identity
    slot_norm_dim: pydantic.PositiveInt | None = None
    """Divisor of a slot's share of the sum of squares; null: slot_width. A grown model keeps its old divisor."""
    read_shares: tuple[pydantic.PositiveFloat, ...] | None = None
    """Factor of the read of each slot; null: 1. Growth sets it: the factors of the copies of a slot sum to the factor
    of the slot. They are unequal, because equal copies would stay equal."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "ManifoldConfig":
        if self.read_shares is not None and len(self.read_shares) != self.n_slots:
            raise ValueError(f"read_shares: got {len(self.read_shares)}; must be one per slot, {self.n_slots}")
        if self.n_slots == 1:
            raise ValueError("n_slots: got 1; must be at least 2")
        if self.carry == "permutations" and self.n_slots > MAX_PERMUTED_SLOTS:
            raise ValueError(f"n_slots: got {self.n_slots}; must be at most {MAX_PERMUTED_SLOTS} with permutations")
        return self

    def check_widths(self, d_model: int, widths: Sequence[int]) -> None:
        for width in (d_model, *widths):
            if width != self.slot_width:
                raise ValueError(
                    f"kind: got manifold with a layer of width {width}; a slot is a layer wide, so all widths must be "
                    f"{self.slot_width}; use hyper_connections"
                )

    def cost(self, d_before: int, d_read: int, d_write: int) -> Cost:
        return self.site_cost(self.slot_width, self.n_slots)

    def exit_cost(self, d_model: int, shares_reduction: bool = False) -> Cost:
        """Return the cost of one read of the last state, which it keeps for the backward pass."""
        matrix = linear(self.n_slots * d_model, self.n_slots)
        mixing = mixing_cost(self.n_slots, 1, 0, d_model, state_every=1) + vector(self.n_slots + 1)
        return mixing + (matrix.shared() if shares_reduction else matrix)

    @property
    def layout(self) -> SlotLayout:
        return SlotLayout(self.slot_width, self.n_slots, n_owned_slots=1)

    def with_constants_of(self, old: ResidualConfig, d_model: int, widths: Sequence[int]) -> "ManifoldConfig":
        """Return this config with the constants of `old`. A plain residual becomes equal slots, read as their mean.

        New slots are copies of old ones, so that the carry stays doubly stochastic.
        """
        if not isinstance(old, ManifoldConfig):
            if not old.is_sum or {d_model, *widths} != {d_model}:
                raise ValueError(
                    f"kind: got manifold where it was {old.kind}; only a plain residual with layers of one width can "
                    "become slots"
                )
            # Every initial read is 1/2. With these shares the reads sum to 1, as do the columns of each carry, so that
            # all slots stay equal to the old stream.
            shares = (2 / self.n_slots,) * self.n_slots
            return self.model_copy(update={"scale_init": 0.0, "coefficient_eps": 0.0, "read_shares": shares})
        must_stay(("carry", "n_iterations"), old, self)
        is_multiple = self.n_slots % old.n_slots == 0 and self.carry == "sinkhorn"
        if self.n_slots != old.n_slots and not is_multiple:
            allowed = f"{old.n_slots}, or with carry: sinkhorn a multiple of it, because slots are copied"
            raise ValueError(f"n_slots: got {self.n_slots}; must be {allowed}")
        n_copies = self.n_slots // old.n_slots
        shares = old.read_shares
        if n_copies > 1:
            parts = [2 * (i + 1) / (n_copies * (n_copies + 1)) for i in range(n_copies)]  # 1 : 2 : ..., with sum 1
            shares = tuple(share * part for share in shares or (1.0,) * old.n_slots for part in parts)
        divisor = old.slot_norm_dim or old.slot_width
        constants = {"eps": old.eps, "coefficient_eps": old.coefficient_eps, "read_shares": shares}
        constants["slot_norm_dim"] = None if divisor == self.slot_width else divisor
        return self.model_copy(update=constants)

    def growth_in_words(self, old: ResidualConfig) -> Iterator[str]:
        if not isinstance(old, ManifoldConfig):
            yield f"residual: {old.kind} -> {self.n_slots} slots with doubly stochastic carries (virtual width)"
        elif self.n_slots != old.n_slots:
            yield f"residual: {old.n_slots} -> {self.n_slots} slots, copies of the old ones (virtual width)"


class ManifoldTemplate(ManifoldOptions, ResidualTemplate):
    """n_slots slots of d_model numbers; every layer is d_model wide."""

    n_slots: NSlots = 4
    """Slots of the stream, which is n_slots times as wide as the layers."""

    def quantum(self, d_model: int) -> int:
        return d_model

    def matched_cost(self, d_model: int, d_read: Any, d_write: Any) -> Cost:
        return self.site_cost(d_model, self.n_slots)

    def at_widths(self, d_model: int, widths: Sequence[int]) -> ManifoldConfig:
        return ManifoldConfig(slot_width=d_model, n_slots=self.n_slots, **options_of(ManifoldOptions, self))


register_residual(ManifoldConfig, ManifoldTemplate)
