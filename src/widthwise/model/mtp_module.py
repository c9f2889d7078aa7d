"""The module of multi-token prediction: one further head."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from widthwise.model.axes import Linear
from widthwise.model.choices import Choices
from widthwise.model.context import PassContext
from widthwise.model.kv_cache import LayerCache
from widthwise.model.residual import Residual

if TYPE_CHECKING:
    from widthwise.model.mtp import MTPConfig


class MTPDepth(nn.Module):
    """One further head."""

    def __init__(self, config: "MTPConfig", residual: Residual, d_model: int):
        super().__init__()
        self.residual, self.d_model = residual, d_model
        slot_width = residual.slot_shape(d_model)[1]
        slot = {"slot_width": slot_width}
        self.state_norm = config.slot_norm.build(slot)
        self.embedding_norm = config.slot_norm.build(slot)
        self.w_join = Linear({"halves": 2, **slot}, slot)
        self.layer = config.layer.build(residual, d_model)
        self.exit = residual.build_exit(d_model, d_model, config.final_norm)

    def forward(
        self, slots: Tensor, later: Tensor, context: PassContext, cache: LayerCache | None = None
    ) -> tuple[Tensor, Choices]:
        """slots: (B, T, n_slots, slot_width), of the depth before; later: the same shape, the later tokens' as they
        enter the model; context: with those tokens -> the slots of this depth, and what its feed-forward chose.
        """
        joined = self.w_join(torch.cat((self.state_norm(slots), self.embedding_norm(later)), dim=-1))
        stream, choices = self.layer(self.residual.from_slots(joined), context, cache)
        return self.residual.to_slots(stream, self.d_model), choices

    def hidden(self, slots: Tensor) -> Tensor:
        """The slots of this depth -> what the head multiplies, (B, T, d_model)."""
        return self.exit(self.residual.from_slots(slots))
