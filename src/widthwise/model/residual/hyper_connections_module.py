"""The module of hyper-connections: one sublayer's mixtures."""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from widthwise.kernels import read_slots, write_slots
from widthwise.kernels.boundary import PendingWrite, Reading, boundary, defers_writes, written
from widthwise.kernels.hyper_connections import reference
from widthwise.model.axes import Control, Norm, RMSNorm, Scale, Vector
from widthwise.model.residual.interface_module import Site
from widthwise.model.residual.pattern import Pattern

if TYPE_CHECKING:
    from widthwise.model.residual.hyper_connections import HyperConnectionsConfig


class Unwritten(NamedTuple):
    """What a deferred write needs from its read; see `kernels.boundary`."""

    state: Tensor
    coefficients: Tensor


class SlotNorm(RMSNorm):
    """The norm of a slot for dynamic coefficients, whose output is divided by the root of norm_dim once more.

    That factor cancels a change of divisor, so that `bake` leaves the gain alone.
    """

    def gain_factor(self, other: Norm) -> float:
        return 1.0


class HyperConnection(Site):
    """One sublayer's mixtures. The stream is (B, T, n_slots, slot_width) or the pending write that makes it."""

    def __init__(self, config: "HyperConnectionsConfig", n_read: int, n_write: int):
        super().__init__()
        self.config, self.n_read = config, n_read
        pattern = Pattern(config.n_slots, n_read, n_write, config.write_init, config.n_owned_slots)
        self.table = {"n_slots": config.n_slots, "n_coefficients": pattern.n_coefficients}
        self.static = Vector(self.table, start=pattern)
        if config.dynamic:
            slot = {"slot_width": config.slot_width}
            self.norm = SlotNorm(slot, config.eps, config.slot_norm_dim or config.slot_width)
            self.dynamic = Control(slot, {"n_coefficients": pattern.n_coefficients}, start=0.0)
            self.scale = Scale(self.table, start=1.0)

    def _reading(self) -> Reading:
        """Static coefficients, projection and scale as the kernels take them."""
        table, static = tuple(self.table.values()), self.static()
        if not self.config.dynamic:
            return Reading(static.view(table), None, None, self.n_read, self.config.eps)
        # The gain and 1 / sqrt(norm_dim) are folded into the matrix, so that the normalised state is never formed. The
        # kernels divide by the slot width b instead of norm_dim = n, with an eps that compensates:
        # 1 / sqrt(n) / sqrt(S / n + eps) = 1 / sqrt(b) / sqrt(S / b + eps n / b) for the sum of squares S.
        slot_width = self.config.slot_width
        projection = (self.norm.weight / math.sqrt(slot_width))[:, None] * self.dynamic.weight.T
        eps = self.config.eps * (self.norm.norm_dim / slot_width)
        return Reading(static.view(table), projection, self.scale().view(table), self.n_read, eps)

    def coefficients(self, stream: Tensor | PendingWrite) -> Tensor:
        """The mixing coefficients (B, T, n_slots, n_coefficients), without the first two axes if all tokens share them.

        In fp32 or wider. See `kernels.hyper_connections.reference`.
        """
        return reference.read_slots(written(stream), *self._reading())[1]

    def read(self, stream: Tensor | PendingWrite) -> tuple[Tensor, Any]:
        if defers_writes(stream):
            state, x, coefficients = boundary(stream, self._reading())
            return x, Unwritten(state, coefficients)
        return read_slots(written(stream), *self._reading(), self.config.state_every)

    def write(self, kept: Any, update: Tensor) -> Tensor | PendingWrite:
        if isinstance(kept, Unwritten):
            return PendingWrite(kept.state, update, kept.coefficients, self.n_read, self.config.multiplier)
        return write_slots(kept, update, self.config.multiplier)
