"""The module of hyper-connections: the site of one sublayer."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from widthwise.kernels.hyper_connections import FreeForm
from widthwise.model.axes import Control, Norm, RMSNorm, Scale, Vector
from widthwise.model.residual.hyper_connections import HyperConnectionsConfig
from widthwise.model.residual.over_width_module import SlotSite, build_entry, build_exit
from widthwise.model.residual.slots import N_SCALES

__all__ = ["HyperConnection", "build_entry", "build_exit", "build_site"]


class Pattern(NamedTuple):
    """Initialiser of the static coefficients of one site, a table [read | carry | write] with a row per slot."""

    n_slots: int
    n_read: int
    n_write: int
    n_owned_slots: int
    has_one_write: bool = False
    """True if a slot takes only one block, so that the write part has one column."""
    first_read: int = 0
    """The first slot that is read."""

    @property
    def n_coefficients(self) -> int:
        """Columns of a slot's row: its weight in each read block and each carried slot, and the weights of the written
        blocks in it.
        """
        return self.n_read + self.n_slots + (1 if self.has_one_write else self.n_write)

    def __call__(self, table: Tensor, generator: torch.Generator) -> None:
        """Fill the table: each block is read from one slot, and every slot is carried unchanged.

        The carry part is the deviation from the identity, so it is 0. Blocks are written to the first slots, and in
        turn to the slots that no layer owns.
        """
        rows = table.zero_().view(self.n_slots, self.n_coefficients)
        for block in range(self.n_read):
            rows[(self.first_read + block) % self.n_slots, block] = 1
        for slot in range(self.n_slots):
            if slot < self.n_write or slot >= self.n_owned_slots:
                block = 0 if self.has_one_write else slot % self.n_write
                rows[slot, self.n_read + self.n_slots + block] = 1


class SlotNorm(RMSNorm):
    """The norm of a slot for dynamic coefficients.

    Its output is also divided by sqrt(norm_dim). A change of norm_dim cancels, so that `bake` keeps the gain.
    """

    def gain_factor(self, target: Norm) -> float:
        return 1.0


class HyperConnection(SlotSite):
    def __init__(self, config: HyperConnectionsConfig, d_before: int, d_read: int, d_write: int):
        n_read = d_read // config.slot_width
        n_write = d_write // config.slot_width
        norm_dim = config.slot_norm_dim or config.slot_width
        super().__init__(config, FreeForm(n_read, config.eps * (norm_dim / config.slot_width)))
        self.n_write = n_write
        has_one_write = config.writes == "own"
        self._pattern = Pattern(config.n_slots, n_read, n_write, config.n_owned_slots, has_one_write)
        self.table_axes = {"n_slots": config.n_slots, "n_coefficients": self._pattern.n_coefficients}
        self.static = Vector(self.table_axes, start=self._pattern)
        if config.dynamic:
            slot = {"slot_width": config.slot_width}
            has_entries = config.scale == "entries"
            self.norm = (SlotNorm if has_entries else RMSNorm)(slot, config.eps, norm_dim)
            self.dynamic = Control(slot, {"n_coefficients": self._pattern.n_coefficients}, start=0.0)
            self.scale = Scale(self.table_axes, start=1.0) if has_entries else Scale({"n_scales": N_SCALES}, start=0.01)

    def set_index(self, index: int) -> None:
        if self.config.read_init == "in_turn":
            self.static.start = self._pattern._replace(first_read=index * self.n_read)

    def tables(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        n_slots, n_coefficients = self.table_axes.values()
        static = self._of_all_blocks(self.static().view(n_slots, n_coefficients))
        if not self.config.dynamic:
            return static, None, None
        # The gain and 1 / sqrt(norm_dim) are folded into the matrix, so that the normalised state is never formed. The
        # kernels divide by the slot width b instead of norm_dim = n, with an eps that compensates:
        # 1 / sqrt(n) / sqrt(S / n + eps) = 1 / sqrt(b) / sqrt(S / b + eps n / b) for the sum of squares S.
        # With scale `numbers` the projection is not divided by sqrt(n), which `root` cancels.
        root = 1.0 if self.config.scale == "entries" else math.sqrt(self.norm.norm_dim)
        projection = (self.norm.weight * (root / math.sqrt(self.config.slot_width)))[:, None] * self.dynamic.weight.T
        if self.config.writes == "own":
            projection = torch.cat((projection[:, :-1], projection[:, -1:].expand(-1, self.n_write)), dim=1)
        if self.config.scale == "entries":
            scale = self.scale().view(n_slots, n_coefficients)
        else:
            n_mixed = self.n_read + n_slots
            mixed, written = self.scale().split(1)
            columns = torch.cat((mixed.expand(n_mixed), written.expand(n_coefficients - n_mixed)))
            scale = columns.expand(n_slots, -1)
        return static, projection, self._of_all_blocks(scale)

    def _of_all_blocks(self, table: Tensor) -> Tensor:
        """Return the table with a column per written block, 0 for slots that do not take this block.

        table: (n_slots, n_coefficients).
        """
        if self.config.writes == "all":
            return table
        slots = torch.arange(self.config.n_slots, device=table.device)[:, None]
        takes_block = slots % self.n_write == torch.arange(self.n_write, device=table.device)
        return torch.cat((table[:, :-1], table[:, -1:] * takes_block), dim=1)


build_site = HyperConnection
