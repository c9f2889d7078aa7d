"""Tables of the input: learned positions and hashed n-grams, each added to the embedding of a token.

Positions: a row for each, and one beyond the last row is refused. Sources: Gehring et al. 2017, arXiv:1705.03122;
GPT-2, Radford et al. 2019.

N-grams: rows for the last two, three ... tokens, added to the embedding of the last one. Every order has a table of its
own. There are far more n-grams than rows, so an n-gram is hashed to one, which it shares with others. Source: the
Over-Encoding of Huang et al. 2025, arXiv:2501.16975, which the virtual-width paper names as an input for wide streams;
here with one table an order, as wide as the embedding, that starts at 0.
"""

from typing import Annotated

from pydantic import Field

from widthwise.config_io import Config
from widthwise.model.cost import Cost, vector
from widthwise.sizes import NTokens, VocabSize


class LearnedPositionsConfig(Config):
    """A table as wide as the token embedding."""

    n_positions: NTokens
    """Rows, which is the longest context the model can read."""

    def cost(self, width: int) -> Cost:
        """width: columns of the table. The sum keeps nothing for the backward pass."""
        return vector(self.n_positions * width)


class NGramsConfig(Config):
    """Tables as wide as the token embedding."""

    max_n: Annotated[int, Field(ge=2, le=8)] = 3
    """Tokens of the longest n-grams; there is a table for 2, one for 3, and so on up to this."""
    n_rows: VocabSize
    """Rows of each table."""

    def cost(self, width: int) -> Cost:
        """width: columns of the tables. Looking rows up and adding them takes no product and keeps nothing."""
        return vector((self.max_n - 1) * self.n_rows * width)
