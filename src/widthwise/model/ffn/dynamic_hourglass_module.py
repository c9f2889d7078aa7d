"""The module of a dynamic hourglass."""

import torch
from torch import Tensor

from widthwise.kernels.dispatch import use_fused
from widthwise.kernels.sliced_swiglu import Edge, unit_centres, whole_units
from widthwise.model.context import Choices, PassContext
from widthwise.model.ffn.dynamic_hourglass import DynamicHourglassConfig
from widthwise.model.ffn.hourglass_module import Hourglass
from widthwise.model.ffn.width_choice_module import WidthChoosing, recomputed
from widthwise.model.norm import NormSite


class DynamicHourglass(Hourglass, WidthChoosing):
    """The score reads what the first block reads. Where the mask is a step, a block computes only the tokens that pass
    it; else all, times the mask."""

    def __init__(self, config: DynamicHourglassConfig, d_model: int, d_out: int, norm: NormSite):
        super().__init__(config, d_model, d_out, norm)
        self.add_choice(config, d_model)

    def forward(self, x: Tensor, context: PassContext) -> tuple[Tensor, Choices]:
        entered = self.norm(x)
        read = self.stack[0].norm.before(entered)
        asked, used, edge = self.choose(read, x, context)
        width = self.config.n_blocks * used
        if edge is not None and self._skips(read, edge):
            total = self._skipping(entered, read, width, x.dtype)
        else:
            total = self._masked(entered, read, width, edge, x.dtype)
        return total[..., : self.d_out], {"width_fraction": asked}

    def read_by_score(self, x: Tensor) -> Tensor:
        return self.stack[0].norm.before(self.norm(x))

    def _skips(self, x: Tensor, edge: Edge) -> bool:
        """Return whether blocks leave out tokens: the mask is a step without a derivative, and counts are known."""
        if edge.margin > 0 or self.execution == "masked" or torch.compiler.is_compiling():
            return False
        return self.execution == "sliced" or use_fused(x)

    def _masked(self, entered: Tensor, read: Tensor, width: Tensor, edge: Edge | None, dtype: torch.dtype) -> Tensor:
        """The sum (B, T, d_write) of what all blocks add, each times its mask.

        entered: (B, T, d_model), what enters the stack; read: what the first block makes of it; width: (B, T), in
        blocks; dtype: that of the stream.
        """
        total = _masked_update(self.stack[0].update_of(read), width, edge, 0)
        for place, block in enumerate(self.stack[1:], start=1):
            total = total.to(dtype)  # sums in the dtype of the stream, not of the matrix products
            inside = entered.add(total, alpha=self.config.block_multiplier)
            update = _masked_update(block.update_of(block.norm.before(inside)), width, edge, place)
            total = total[..., : update.shape[-1]] + update
        return total

    def _skipping(self, entered: Tensor, read: Tensor, width: Tensor, dtype: torch.dtype) -> Tensor:
        """The same where masks are 0 or 1: a block computes the tokens that pass it."""
        rows, first = entered.flatten(0, 1), read.flatten(0, 1)
        n_passed = whole_units(width.flatten(), 0.0, self.config.n_blocks)
        total = torch.zeros_like(rows, dtype=dtype)
        for place, block in enumerate(self.stack):
            going = (n_passed > place).nonzero()[:, 0]
            if len(going) == 0 and not torch.is_grad_enabled():
                break  # in training the weights still need a gradient, of 0
            if place == 0:
                own = first[going]
            else:
                own = block.norm.before(rows[going].add(total[going], alpha=self.config.block_multiplier))
            update = block.update_of(own).to(dtype)
            total = total[:, : update.shape[-1]].index_add(0, going, update)
        return total.unflatten(0, entered.shape[:2])

    def block_masks(self, fraction: Tensor, progress: Tensor) -> Tensor:
        """(B, T, n_blocks): how much of each block's update tokens take that use this fraction (B, T) of the width."""
        if self.score is None:
            return torch.ones_like(fraction)[..., None].expand(*fraction.shape, self.config.n_blocks)
        width = self.config.n_blocks * fraction
        return self._edge(progress).mask(width[..., None], unit_centres(0, self.config.n_blocks, width))

    def used_units(self, width: Tensor) -> Tensor:
        return whole_units(width, 0.0, self.config.n_blocks) * self.config.hidden_widths[0]

    def bucketed_units(self, width: Tensor, progress: Tensor) -> int:
        """The units of the blocks that tokens pass: a block is computed for exactly those."""
        return int(self.used_units(width).sum())

    def computed_units(self, width: Tensor, progress: Tensor, is_compiled: bool) -> int:
        if not is_compiled and self._skips(width, self._edge(progress)):
            return self.bucketed_units(width, progress)
        return len(width) * sum(self.config.hidden_widths)


def _masked_update(update: Tensor, width: Tensor, edge: Edge | None, place: int) -> Tensor:
    """update: (B, T, d_write), what block `place` adds -> what of it tokens of that width (B, T) take."""
    if edge is None:
        return update

    def masked(update: Tensor, width: Tensor) -> Tensor:
        return update * edge.mask(width[..., None], unit_centres(place, place + 1, width)).to(update.dtype)

    return recomputed(masked, update, width)
