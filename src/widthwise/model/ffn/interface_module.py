"""The interface of a feed-forward's module."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from widthwise.model.context import Choices, PassContext


class FeedForward(nn.Module, ABC):
    """A feed-forward, including its norm."""

    @abstractmethod
    def forward(self, x: Tensor, context: PassContext) -> tuple[Tensor, Choices]:
        """x: (B, T, d_model), the stream before the norm -> the update (B, T, d_out) and its choices."""
