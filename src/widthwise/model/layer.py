"""One decoder layer: attention and feed-forward, each behind its norm and its residual."""

import pydantic
from torch import nn

from widthwise.config_io import Config
from widthwise.model.attention import AttentionConfig
from widthwise.model.context import PassContext
from widthwise.model.cost import Cost
from widthwise.model.ffn import FFN
from widthwise.model.ffn.interface import Choices
from widthwise.model.kv_cache import LayerCache
from widthwise.model.norm import PLACEMENTS, NormConfig, NormSite, Placement
from widthwise.model.residual import Residual
from widthwise.model.residual.interface import Site, Stream
from widthwise.sizes import Width


class LayerConfig(Config):
    """A layer and its sizes. Width belongs to the layer."""

    d_model: Width
    """Width of the layer: the coordinates of the stream it owns."""
    d_in: Width
    """Coordinates the attention reads; d_model except in a slim first layer, which reads the width of the embedding."""
    d_out: Width
    """Coordinates the feed-forward writes; d_model except in a slim last layer, which writes the width of the head."""
    norm_placement: Placement = "pre"
    attention_norm: NormConfig
    attention: AttentionConfig
    ffn_norm: NormConfig
    ffn: FFN

    @pydantic.model_validator(mode="after")
    def _check(self) -> "LayerConfig":
        for name in ("d_in", "d_out"):
            if getattr(self, name) > self.d_model:
                raise ValueError(
                    f"{name}: got {getattr(self, name)}; a layer reaches only its own {self.d_model} coordinates"
                )
        return self

    @property
    def usual_norm_dims(self) -> dict[str, int]:
        """By norm the divisor that it has in a layer that never grew.

        At slim ends it is not what a norm before its sublayer reads: that is their design.
        """
        placement = PLACEMENTS[self.norm_placement]
        return {"attention_norm": self.d_model, "ffn_norm": placement.normalised_width(self.d_model, self.d_out)}

    @property
    def attention_norm_site(self) -> NormSite:
        return NormSite(self.norm_placement, self.attention_norm)

    @property
    def ffn_norm_site(self) -> NormSite:
        return NormSite(self.norm_placement, self.ffn_norm)

    def costs(self, residual: Residual, d_before: int) -> dict[str, Cost]:
        """Cost by part. d_before: width of the stream as it arrives."""
        return {
            "attention": self.attention.cost(self.d_model, self.d_in),
            "ffn": self.ffn.cost(self.d_model, self.d_out),
            "norm": self.attention.norm_cost(self.d_model, self.d_in, self.attention_norm_site)
            + self.ffn.norm_cost(self.d_model, self.d_out, self.ffn_norm_site),
            "residual": residual.cost(d_before, self.d_in, self.d_model)
            + residual.cost(self.d_model, self.d_model, self.d_out),
        }

    def build(self, residual: Residual, d_before: int) -> "DecoderLayer":
        return DecoderLayer(self, residual, d_before)


class DecoderLayer(nn.Module):
    def __init__(self, config: LayerConfig, residual: Residual, d_before: int):
        super().__init__()
        self.config = config
        self.attention_residual: Site = residual.build(d_before, config.d_in, config.d_model)
        self.attention = config.attention.build(config.d_model, config.d_in, config.attention_norm_site)
        self.ffn_residual: Site = residual.build(config.d_model, config.d_model, config.d_out)
        self.ffn = config.ffn.build(config.d_model, config.d_out, config.ffn_norm_site)

    def forward(self, stream: Stream, context: PassContext, cache: LayerCache | None = None) -> tuple[Stream, Choices]:
        """The residual's stream -> the same kind of stream, rewritten in the coordinates this layer owns.

        Also returns what the feed-forward chose for the tokens.
        """
        x, kept = self.attention_residual.read(stream)
        stream = self.attention_residual.write(kept, self.attention(x, context, cache))
        x, kept = self.ffn_residual.read(stream)
        update, choices = self.ffn(x, context)
        return self.ffn_residual.write(kept, update), choices
