"""Multi-token prediction: further heads, each one decoder layer deep, that see a later token and predict its successor.

Depth k takes the stream of depth k - 1 at position i (depth 0 is the model itself) and the embedding of token i + k,
and predicts token i + k + 1. Its slots are joined one by one by the same small matrix, so that its cost does not grow
with the square of the stream: virtual-width paper, arXiv:2511.11238, section 3.4. With a single slot it is the module
of DeepSeek-V3 (arXiv:2412.19437, section 2.2). Embedding, head and reduction are the model's own.

Positions stay those of the model: depth k at position i is rotated by i and attends to positions up to i, of its own
document where attention is masked. A depth is asked across the border of documents as the model is, masked or not: in
the last k positions of a document, after which nothing of it comes, it is given a token of the next one.
"""

from typing import TYPE_CHECKING

import pydantic
from pydantic import Field

from widthwise.config_io import Config
from widthwise.model.cost import Cost, linear
from widthwise.model.layer import LayerConfig
from widthwise.model.norm import NormConfig
from widthwise.model.residual import Residual
from widthwise.records.quantities import MOST_MTP_DEPTHS

if TYPE_CHECKING:
    from torch import Tensor


class MTPOptions(Config):
    """Options that a recipe and a resolved model share."""

    n_depths: int = Field(default=1, gt=0, le=MOST_MTP_DEPTHS)
    """Tokens predicted beyond the next one."""
    coefficient: pydantic.NonNegativeFloat = 0.3
    """Factor in the objective of the mean of their losses, which is never part of the reported loss."""
    final_coefficient: pydantic.NonNegativeFloat | None = None
    """What the coefficient comes to at the end of training, in a straight line; null: it stays."""
    share_reduce: bool = True
    """Whether the slots of all depths are reduced by the model's own matrix."""


class MTPConfig(MTPOptions):
    """Further heads with the sizes written out."""

    layer: LayerConfig
    """The layer of every depth."""
    slot_norm: NormConfig
    """The norm of each half of a slot, before the two are joined."""
    final_norm: NormConfig
    """The norm before the head."""

    def cost(self, residual: Residual, d_model: int, head: Cost) -> Cost:
        """The cost in training of all depths, as if each were asked at every position; depth k lacks the last k.

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
            n_shared = residual.reduction_params(d_model)
            cost += Cost(params=-n_shared, active_params=-n_shared)
        return cost + Cost(activation_elements=d_model)

    def coefficient_at(self, progress: "Tensor") -> "Tensor | float":
        """progress: scalar from 0 to 1."""
        if self.final_coefficient is None:
            return self.coefficient
        return progress.new_tensor(self.coefficient).lerp(progress.new_tensor(self.final_coefficient), progress)
