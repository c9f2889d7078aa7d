"""A decoder layer: attention and feed-forward, each with its norm and residual; and MTP heads, with one layer each.

Multi-token prediction: depth k reads the stream of depth k - 1 at position i (depth 0 is the model) and the embedding
of token i + k, and predicts token i + k + 1. One small matrix joins the two slot by slot, so that its cost does not
grow with the square of the stream: virtual-width paper, arXiv:2511.11238, section 3.4. With a single slot it is the
module of DeepSeek-V3 (arXiv:2412.19437, section 2.2). The model shares its embedding, head and reduction with all
depths.

At position i, the attention of every depth has rotary position i and sees positions up to i, within the document if
attention is masked by document. Like the model, a depth predicts across the end of a document, masked or not: in the
last k positions of a document it reads a token of the next document.
"""

import pydantic
from pydantic import Field

from widthwise.config_io import Config
from widthwise.model.attention import AttentionConfig
from widthwise.model.cost import Cost, linear
from widthwise.model.ffn import FFN
from widthwise.model.norm import PLACEMENTS, NormConfig, NormSite, Placement
from widthwise.model.residual import Residual
from widthwise.model.residual.interface import SiteWidths
from widthwise.records.quantities import MOST_MTP_DEPTHS
from widthwise.sizes import Width


class LayerConfig(Config):
    """A layer and its sizes."""

    d_model: Width
    """Width of the layer: its coordinates of the stream."""
    d_in: Width
    """Coordinates that attention reads: d_model, but the width of the embedding in a slim first layer."""
    d_out: Width
    """Coordinates that the feed-forward writes: d_model, but the width of the head in a slim last layer."""
    norm_placement: Placement = "pre"
    attention_norm: NormConfig
    attention: AttentionConfig
    ffn_norm: NormConfig
    ffn: FFN

    @pydantic.model_validator(mode="after")
    def _check(self) -> "LayerConfig":
        for name in ("d_in", "d_out"):
            if getattr(self, name) > self.d_model:
                raise ValueError(f"{name}: got {getattr(self, name)}; must be at most d_model = {self.d_model}")
        return self

    @property
    def widths(self) -> tuple[int, int, int]:
        """Width of the layer, and coordinates that it reads and writes."""
        return self.d_model, self.d_in, self.d_out

    def sites(self, d_before: int) -> tuple[SiteWidths, SiteWidths]:
        """Return the widths at the sites of attention and feed-forward. d_before: width of the input stream."""
        return (d_before, self.d_in, self.d_model), (self.d_model, self.d_model, self.d_out)

    @property
    def usual_norm_dims(self) -> dict[str, int]:
        """Name of norm -> its divisor in a layer that never grew.

        A slim first layer reads fewer coordinates than attention_norm divides by; see `model.axes.Norm`.
        """
        ffn_norm_dim = self.ffn_norm_site.place.normalised_width(self.d_model, self.d_out)
        return {"attention_norm": self.d_model, "ffn_norm": ffn_norm_dim}

    @property
    def attention_norm_site(self) -> NormSite:
        return NormSite(PLACEMENTS[self.norm_placement], self.attention_norm)

    @property
    def ffn_norm_site(self) -> NormSite:
        return NormSite(PLACEMENTS[self.norm_placement], self.ffn_norm)

    def costs(self, residual: Residual, d_before: int) -> dict[str, Cost]:
        """Return the cost by part, see `records.cost.PARTS`. d_before: width of the input stream."""
        attention_norms = self.attention.norm_cost(self.d_model, self.d_in, self.attention_norm_site)
        ffn_norms = self.ffn.norm_cost(self.d_model, self.d_out, self.ffn_norm_site)
        return {
            "attention": self.attention.cost(self.d_model, self.d_in),
            "ffn": self.ffn.cost(self.d_model, self.d_out),
            "norm": attention_norms + ffn_norms,
            "residual": sum((residual.cost(*site) for site in self.sites(d_before)), Cost()),
        }

    def n_dead_params(self, n_unwritten: int, n_unread: int) -> float:
        """Return the number of parameters without gradient.

        n_unwritten: coordinates that attention reads and that are always 0. After a LayerNorm they are not 0, and no
        parameter of attention is dead. n_unread: coordinates that the feed-forward writes and nothing reads. A norm of
        the update reads them, and only its gains are dead.
        """
        place = PLACEMENTS[self.norm_placement]

        def params(d_in: int, d_out: int) -> float:
            """Return the number of parameters in the parts that can have dead ones, at these numbers of coordinates."""
            n = self.ffn.norm_cost(self.d_model, d_out, self.ffn_norm_site).params
            if not place.is_after:
                n += self.ffn.cost(self.d_model, d_out).params
            if not place.is_before or self.attention_norm.kind != "layer":
                n += self.attention.norm_cost(self.d_model, d_in, self.attention_norm_site).params
                n += self.attention.cost(self.d_model, d_in).params
            return n

        return params(self.d_in, self.d_out) - params(self.d_in - n_unwritten, self.d_out - n_unread)


class MTPOptions(Config):
    """Options that a recipe and a resolved model share."""

    n_depths: int = Field(default=1, gt=0, le=MOST_MTP_DEPTHS)
    """Tokens predicted beyond the next one."""
    coefficient: pydantic.NonNegativeFloat = 0.3
    """Factor of the mean loss of the MTP heads in the objective; never part of the reported loss."""


class MTPConfig(MTPOptions):
    """MTP heads with all sizes written out."""

    layer: LayerConfig
    """The layer of every depth."""
    slot_norm: NormConfig
    """The norm of each half of a slot, before the halves are joined."""
    final_norm: NormConfig
    """The norm before the head."""

    def cost(self, residual: Residual, d_model: int, head: Cost) -> Cost:
        """Return the training cost of all depths, as if they skipped no positions; depth k skips the last k.

        head: cost of the model's head. Its parameters are not counted again.
        """
        depth = self.slots_cost(residual, d_model) + self.exit_cost(residual, d_model, head)
        return sum([depth] * self.n_depths, Cost())

    def slots_cost(self, residual: Residual, d_model: int) -> Cost:
        """Return the cost of computing the slots of one depth: norms, join and layer.

        The backward pass needs the activations of layer and norms, and the normalised halves of each slot.
        """
        n_slots, slot_width = residual.slot_shape(d_model)
        norm = self.slot_norm.cost(slot_width, n_slots, is_read=False)  # joining the halves copies them
        join = linear(2 * slot_width, slot_width, n_slots) + norm + norm
        join += Cost(activation_elements=2 * n_slots * slot_width)
        return sum(self.layer.costs(residual, d_model).values(), join)

    def exit_cost(self, residual: Residual, d_model: int, head: Cost) -> Cost:
        """Return the cost of the loss of one depth: exit, head, and the kept gradient of the head's input."""
        cost = residual.exit_cost(d_model, shares_reduction=True) + self.final_norm.cost(d_model, is_read=False)
        return cost + head.shared() + Cost(activation_elements=d_model)
