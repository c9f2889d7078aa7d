"""The module of learned positions."""

from torch import Tensor, nn

from widthwise.model.axes import Table
from widthwise.model.input_tables import LearnedPositionsConfig


class LearnedPositions(Table):
    """One row per position."""

    def __init__(self, config: LearnedPositionsConfig, width: int):
        super().__init__({"n_positions": config.n_positions}, {"d_model": width}, start=None)

    @property
    def n_positions(self) -> int:
        return len(self.weight)

    def forward(self, positions: Tensor) -> Tensor:
        """positions: integers (...) from 0 to n_positions - 1 -> (..., width)."""
        return nn.functional.embedding(positions, self.weight)
