"""Learned absolute positions: a row for each position, added to the embedding of the token that stands there.

Sources: Gehring et al. 2017, arXiv:1705.03122; GPT-2, Radford et al. 2019. A position beyond the last row is
refused.
"""

from torch import Tensor, nn

from widthwise.config_io import Config
from widthwise.model.axes import Axes, Weight, size
from widthwise.model.cost import Cost
from widthwise.sizes import NTokens


class LearnedPositionsConfig(Config):
    """A table as wide as the token embedding."""

    n_positions: NTokens
    """Rows, which is the longest context the model can read."""

    def cost(self, width: int) -> Cost:
        """width: columns of the table. The sum keeps nothing for the backward pass."""
        return Cost(params=self.n_positions * width, active_params=self.n_positions * width)

    def build(self, width: int) -> "LearnedPositions":
        return LearnedPositions(self.n_positions, {"d_model": width})


class LearnedPositions(Weight):
    """One row per position."""

    def __init__(self, n_positions: int, out_axes: Axes):
        super().__init__({"n_positions": n_positions}, out_axes, (n_positions, size(out_axes)), start=None)

    @property
    def n_positions(self) -> int:
        return len(self.weight)

    def check(self, n_tokens: int) -> None:
        """Raises ValueError where a text of n_tokens has tokens without a position."""
        if n_tokens > self.n_positions:
            raise ValueError(f"{n_tokens} tokens do not fit into {self.n_positions} learned positions")

    def forward(self, positions: Tensor) -> Tensor:
        """positions: integers (...) from 0 to n_positions - 1 -> (..., size(out_axes))."""
        return nn.functional.embedding(positions, self.weight)
