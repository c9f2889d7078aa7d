"""The module of one decoder layer."""

from typing import TYPE_CHECKING

from torch import nn

from widthwise.model.choices import Choices
from widthwise.model.context import PassContext
from widthwise.model.kv_cache import LayerCache
from widthwise.model.residual import Residual
from widthwise.model.residual.interface import Stream
from widthwise.model.residual.interface_module import Site

if TYPE_CHECKING:
    from widthwise.model.layer import LayerConfig


class DecoderLayer(nn.Module):
    def __init__(self, config: "LayerConfig", residual: Residual, d_before: int):
        super().__init__()
        self.config = config
        self.attention_residual: Site = residual.build(d_before, config.d_in, config.d_model)
        self.attention = config.attention.build(config.d_model, config.d_in, config.attention_norm_site)
        self.ffn_residual: Site = residual.build(config.d_model, config.d_model, config.d_out)
        self.ffn_residual.join(self.attention_residual)
        self.ffn = config.ffn.build(config.d_model, config.d_out, config.ffn_norm_site)

    def take_place(self, index: int) -> None:
        """Is told how many layers come before it."""
        self.attention_residual.take_place(2 * index)
        self.ffn_residual.take_place(2 * index + 1)

    def forward(self, stream: Stream, context: PassContext, cache: LayerCache | None = None) -> tuple[Stream, Choices]:
        """The residual's stream -> the same kind of stream, rewritten in the coordinates this layer owns.

        Also returns what the feed-forward chose for the tokens, and the residual for the layer.
        """
        x, kept = self.attention_residual.read(stream)
        stream = self.attention_residual.write(kept, self.attention(x, context, cache))
        x, kept = self.ffn_residual.read(stream)
        update, choices = self.ffn(x, context)
        return self.ffn_residual.write(kept, update), {**choices, **self.ffn_residual.choices()}
