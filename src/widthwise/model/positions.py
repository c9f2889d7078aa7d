"""Learned absolute positions: a row for each position, added to the embedding of the token that stands there.

Sources: Gehring et al. 2017, arXiv:1705.03122; GPT-2, Radford et al. 2019. A position beyond the last row is
refused.
"""

from typing import TYPE_CHECKING

from widthwise.config_io import Config
from widthwise.model.cost import Cost
from widthwise.sizes import NTokens

if TYPE_CHECKING:
    from widthwise.model.positions_module import LearnedPositions


class LearnedPositionsConfig(Config):
    """A table as wide as the token embedding."""

    n_positions: NTokens
    """Rows, which is the longest context the model can read."""

    def cost(self, width: int) -> Cost:
        """width: columns of the table. The sum keeps nothing for the backward pass."""
        return Cost(params=self.n_positions * width, active_params=self.n_positions * width)

    def build(self, width: int) -> "LearnedPositions":
        from widthwise.model.positions_module import LearnedPositions

        return LearnedPositions(self.n_positions, {"d_model": width})
