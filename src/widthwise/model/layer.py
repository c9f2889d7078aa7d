"""One decoder layer: attention and feed-forward, each behind its norm and its residual."""

import pydantic

from widthwise.config_io import Config
from widthwise.model.attention import AttentionConfig
from widthwise.model.cost import Cost
from widthwise.model.ffn import FFN
from widthwise.model.norm import PLACEMENTS, NormConfig, NormSite, Placement
from widthwise.model.residual import Residual
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
        n_shared = residual.layer_params
        return {
            "attention": self.attention.cost(self.d_model, self.d_in),
            "ffn": self.ffn.cost(self.d_model, self.d_out),
            "norm": self.attention.norm_cost(self.d_model, self.d_in, self.attention_norm_site)
            + self.ffn.norm_cost(self.d_model, self.d_out, self.ffn_norm_site),
            "residual": residual.cost(d_before, self.d_in, self.d_model)
            + residual.cost(self.d_model, self.d_model, self.d_out)
            + Cost(params=-n_shared, active_params=-n_shared),
        }

    def n_dead_params(self, n_unwritten: int, n_unread: int) -> float:
        """Parameters without gradient where n_unwritten of the coordinates that the attention reads are always 0 and
        n_unread of those that the feed-forward writes are never read.

        A LayerNorm makes other numbers of zeros, and a norm of the update hears all of it: of these, gains alone idle.
        """

        def reading(d_in: int) -> float:
            norm = self.attention.norm_cost(self.d_model, d_in, self.attention_norm_site)
            return self.attention.cost(self.d_model, d_in).params + norm.params

        def writing(d_out: int) -> float:
            norm = self.ffn.norm_cost(self.d_model, d_out, self.ffn_norm_site).params
            return norm if self.norm_placement == "reordered" else norm + self.ffn.cost(self.d_model, d_out).params

        moves_zeros = self.norm_placement == "pre" and self.attention_norm.kind == "layer"
        unread = writing(self.d_out) - writing(self.d_out - n_unread)
        return unread if moves_zeros else unread + reading(self.d_in) - reading(self.d_in - n_unwritten)
