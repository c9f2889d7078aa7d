"""Learned positions, added to the embedding of a token.

A row for each, and one beyond the last row is refused. Sources: Gehring et al. 2017, arXiv:1705.03122; GPT-2, Radford
et al. 2019.
"""

from widthwise.config_io import Config
from widthwise.model.cost import Cost, vector
from widthwise.sizes import NTokens


class LearnedPositionsConfig(Config):
    """A table as wide as the token embedding."""

    n_positions: NTokens
    """Rows, which is the longest context the model can read."""

    def cost(self, width: int) -> Cost:
        """width: columns of the table. The sum keeps nothing for the backward pass."""
        return vector(self.n_positions * width)
