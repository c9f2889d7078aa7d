"""The modules of one decoder layer, and of one further head of multi-token prediction, which is a layer deep."""

import torch
from torch import Tensor, nn

from widthwise.model.attention_module import Attention
from widthwise.model.axes import Linear
from widthwise.model.context import Choices, LayerCache, PassContext, Site, Stream
from widthwise.model.layer import LayerConfig, MTPConfig
from widthwise.model.residual import Residual


class DecoderLayer(nn.Module):
    def __init__(self, config: LayerConfig, residual: Residual, d_before: int, index: int = 0):
        """d_before: width of the stream as it arrives; index: number of layers before it."""
        super().__init__()
        self.config = config
        attention_site, ffn_site = config.sites(d_before)
        self.attention_residual: Site = residual.build(*attention_site)
        self.attention = Attention(config.attention, config.d_model, config.d_in, config.attention_norm_site)
        self.ffn_residual: Site = residual.build(*ffn_site)
        self.ffn = config.ffn.build(config.d_model, config.d_out, config.ffn_norm_site)
        self.attention_residual.set_index(2 * index)
        self.ffn_residual.set_index(2 * index + 1)

    def forward(self, stream: Stream, context: PassContext, cache: LayerCache | None = None) -> tuple[Stream, Choices]:
        """The residual's stream -> the same kind of stream, rewritten in the coordinates this layer owns.

        Also returns what the feed-forward chose for the tokens.
        """
        x, kept = self.attention_residual.read(stream)
        stream = self.attention_residual.write(kept, self.attention(x, context, cache))
        x, kept = self.ffn_residual.read(stream)
        update, choices = self.ffn(x, context)
        return self.ffn_residual.write(kept, update), choices


class MTPDepth(nn.Module):
    """One further head."""

    def __init__(self, config: MTPConfig, residual: Residual, d_model: int):
        super().__init__()
        self.residual, self.d_model = residual, d_model
        slot_width = residual.slot_shape(d_model)[1]
        slot = {"slot_width": slot_width}
        self.state_norm = config.slot_norm.build(slot)
        self.embedding_norm = config.slot_norm.build(slot)
        self.w_join = Linear({"halves": 2, **slot}, slot)
        self.layer = DecoderLayer(config.layer, residual, d_model)
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
