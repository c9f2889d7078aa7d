"""The modules of manifold-constrained hyper-connections."""

from typing import Any

import torch
from torch import Tensor, nn

from widthwise.kernels.hyper_connections import read_slots
from widthwise.kernels.manifold_connections import Carry, ManifoldForm, Permutations, Sinkhorn
from widthwise.model.axes import Control, Scale, Vector
from widthwise.model.context import Exit
from widthwise.model.norm import NormConfig
from widthwise.model.residual.manifold import ManifoldConfig, n_carry_logits
from widthwise.model.residual.over_width_module import CopiesEntry, SlotSite

CARRIES: dict[str, Any] = {
    "sinkhorn": lambda config: Sinkhorn(
        config.n_iterations,
        eps=config.coefficient_eps,
        # Copies of slots have smaller entries, and a smaller number is added to them.
        entry_eps=config.coefficient_eps * sum(shares_of(config)) / config.n_slots,
    ),
    "permutations": lambda config: Permutations(),
}
"""Option `carry` -> its kernel."""


def shares_of(config: ManifoldConfig) -> tuple[float, ...]:
    """Return the factor of the read of each slot. The factors sum to the number of slots before slots were copied."""
    return config.read_shares or (1.0,) * config.n_slots


class Mixing(nn.Module):
    """Parameters of the coefficients scale * (state W^T) + static, before the constraints.

    state: the normalised state of all slots.
    """

    def __init__(self, config: ManifoldConfig, carry: Carry | None, sizes: tuple[int, ...]):
        """carry: None without carries, as in the exit; sizes: numbers of logits that share a scale, reads first."""
        super().__init__()
        self.config = config
        self._sizes = sizes
        norm_dim = config.n_slots * (config.slot_norm_dim or config.slot_width)
        self.form = ManifoldForm(norm_dim, config.eps, config.coefficient_eps, shares_of(config), carry)
        logits = {"n_coefficients": sum(sizes)}
        self.dynamic = Control({"n_slots": config.n_slots, "slot_width": config.slot_width}, logits)
        self.static = Vector(logits, start=0.0)
        self.scale = Scale({"n_scales": len(sizes)}, start=config.scale_init)

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return static (1, k) and projection (n * b, k), which includes the scales, for `ManifoldForm`."""
        scales = torch.cat([scale.expand(n) for scale, n in zip(self.scale().split(1), self._sizes)])
        return self.static()[None], self.dynamic.weight.T * scales


class ManifoldConnection(SlotSite):
    def __init__(self, config: ManifoldConfig, d_before: int, d_read: int, d_write: int):
        n_slots = config.n_slots
        n_logits = n_carry_logits(config.carry, n_slots)
        mixing = Mixing(config, CARRIES[config.carry](config), (n_slots, n_slots, n_logits))
        super().__init__(config, mixing.form)
        self.mixing = mixing

    def tables(self) -> tuple[Tensor, Tensor]:
        return self.mixing.tables()


class ManifoldExit(Exit):
    """One read of the slots, then the last norm."""

    def __init__(self, config: ManifoldConfig, d_model: int, width: int, norm: NormConfig):
        super().__init__()
        self.reduce = Mixing(config, None, (config.n_slots,))
        self.norm = norm.build({"d_model": width})

    def share_reduction(self, source: "ManifoldExit") -> None:
        self.reduce.dynamic.weight = source.reduce.dynamic.weight

    def forward(self, stream: Tensor) -> Tensor:
        x, _ = read_slots(stream, self.reduce.form, self.reduce.tables(), state_every=1)
        return self.norm(x)


def build_entry(config: ManifoldConfig, d_model: int) -> CopiesEntry:
    return CopiesEntry(d_model, config.n_slots, config.slot_width)


build_site = ManifoldConnection
build_exit = ManifoldExit
