"""A decoder layer: attention and feed-forward, each with its norm and its residual; and MTP heads, a layer each.

Multi-token prediction: depth k takes the stream of depth k - 1 at position i (depth 0 is the model itself) and the
embedding of token i + k, and predicts token i + k + 1. Its slots are joined one by one by the same small matrix, so
that its cost does not grow with the square of the stream: virtual-width paper, arXiv:2511.11238, section 3.4. With a
single slot it is the module of DeepSeek-V3 (arXiv:2412.19437, section 2.2). Embedding, head and reduction are the
model's own.

Positions stay those of the model: depth k at position i is rotated by i and attends to positions up to i, of its own
document where attention is masked. A depth predicts across the border of documents as the model does, masked or not: in
the last k positions of a document its input is a token of the next document.
"""

import pydantic
from pydantic import Field

from widthwise.config_io import Config
from widthwise.model.attention import AttentionConfig
from widthwise.model.cost import Cost, linear, vector
from widthwise.model.ffn import FFN
from widthwise.model.norm import PLACEMENTS, NormConfig, NormSite, Placement
from widthwise.model.residual import Residual
from widthwise.model.residual.interface import SiteWidths
from widthwise.records.quantities import MOST_MTP_DEPTHS
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
                raise ValueError(f"{name}: got {getattr(self, name)}; a layer reaches its own {self.d_model} only")
        return self

    @property
    def widths(self) -> tuple[int, int, int]:
        """Coordinates of the stream that the layer owns, reads and writes."""
        return self.d_model, self.d_in, self.d_out

    def sites(self, d_before: int) -> tuple[SiteWidths, SiteWidths]:
        """Return the widths at the residual sites of attention and feed-forward. d_before: of the arriving stream."""
        return (d_before, self.d_in, self.d_model), (self.d_model, self.d_model, self.d_out)

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
            "residual": sum((residual.cost(*site) for site in self.sites(d_before)), Cost()),
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


class MTPOptions(Config):
    """Options that a recipe and a resolved model share."""

    n_depths: int = Field(default=1, gt=0, le=MOST_MTP_DEPTHS)
    """Tokens predicted beyond the next one."""
    coefficient: pydantic.NonNegativeFloat = 0.3
    """Factor in the objective of the mean of their losses, which is never part of the reported loss."""
    final_coefficient: pydantic.NonNegativeFloat | None = None
    """The coefficient at the end of training, in a straight line; null: it stays."""
    share_reduce: bool = True
    """Reduce the slots of all depths by the model's own matrix."""


class MTPConfig(MTPOptions):
    """Further heads with the sizes written out."""

    layer: LayerConfig
    """The layer of every depth."""
    slot_norm: NormConfig
    """The norm of each half of a slot, before the two are joined."""
    final_norm: NormConfig
    """The norm before the head."""

    def cost(self, residual: Residual, d_model: int, head: Cost) -> Cost:
        """The cost in training of all depths, as if each predicted at every position; depth k lacks the last k.

        head: cost of the product with the head, whose parameters are the model's.
        """
        depth = self.slots_cost(residual, d_model) + self.exit_cost(residual, d_model, head)
        return sum([depth] * self.n_depths, Cost())

    def slots_cost(self, residual: Residual, d_model: int) -> Cost:
        """The cost of making the slots of one depth.

        For the backward pass are kept: what the layer keeps, what the norms of the halves keep, and the halves joined.
        """
        n_slots, slot_width = residual.slot_shape(d_model)
        norm = self.slot_norm.cost(slot_width, n_slots, is_read=False)  # joining them makes copies
        join = linear(2 * slot_width, slot_width, n_slots) + norm + norm
        join += Cost(activation_elements=2 * n_slots * slot_width)
        return sum(self.layer.costs(residual, d_model).values(), join)

    def exit_cost(self, residual: Residual, d_model: int, head: Cost) -> Cost:
        """The cost of the loss of one depth. It keeps what the exit keeps, and the gradient of the head's input."""
        cost = residual.exit_cost(d_model) + self.final_norm.cost(d_model, is_read=False) + head.shared()
        if self.share_reduce:
            cost += vector(-residual.reduction_params(d_model))
        return cost + Cost(activation_elements=d_model)
