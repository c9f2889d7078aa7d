"""The modules of a decoder layer, and of an MTP head, which has one layer."""

import torch
from torch import Tensor, nn

from widthwise.model.attention_module import Attention
from widthwise.model.axes import Linear
from widthwise.model.context import Choices, LayerCache, PassContext, Site, Stream
from widthwise.model.layer import LayerConfig, MTPConfig
from widthwise.model.residual import Residual


class DecoderLayer(nn.Module):
    def __init__(self, config: LayerConfig, residual: Residual, d_before: int, index: int = 0):
        """d_before: width of the input stream; index: number of layers before this one."""
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
        """Return the residual's stream after the layer, and the choices of the feed-forward for the tokens."""
        x, skip = self.attention_residual.read(stream)
        stream = self.attention_residual.write(skip, self.attention(x, context, cache))
        x, skip = self.ffn_residual.read(stream)
        update, choices = self.ffn(x, context)
        return self.ffn_residual.write(skip, update), choices


class MTPDepth(nn.Module):
    """An MTP head. See `layer.py` for its function."""

    def __init__(self, config: MTPConfig, residual: Residual, d_model: int):
        super().__init__()
        self.residual = residual
        self.d_model = d_model
        slot = {"slot_width": residual.slot_shape(d_model)[1]}
        self.state_norm = config.slot_norm.build(slot)
        self.embedding_norm = config.slot_norm.build(slot)
        self.w_join = Linear({"halves": 2, **slot}, slot)
        self.layer = DecoderLayer(config.layer, residual, d_model)
        self.exit = residual.build_exit(d_model, d_model, config.final_norm)

    def forward(
        self, slots: Tensor, embedded: Tensor, context: PassContext, cache: LayerCache | None = None
    ) -> tuple[Tensor, Choices]:
        """slots: (B, T, n_slots, slot_width), of the previous depth -> the slots of this depth, and the choices of its
        feed-forward.

        embedded: the embeddings of the later tokens as slots, in the same shape.
        """
        joined = self.w_join(torch.cat((self.state_norm(slots), self.embedding_norm(embedded)), dim=-1))
        stream, choices = self.layer(self.residual.from_slots(joined), context, cache)
        return self.residual.to_slots(stream, self.d_model), choices

    def hidden(self, slots: Tensor) -> Tensor:
        """Return the input of the model's head, (B, T, d_model), from the slots of this depth."""
        return self.exit(self.residual.from_slots(slots))
