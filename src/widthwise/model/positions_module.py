"""The module of learned positions."""

from torch import Tensor, nn

from widthwise.model.axes import Weight
from widthwise.model.axis_sizes import Axes, size


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
