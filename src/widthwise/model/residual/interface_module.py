"""The interface of a residual's modules: one for each sublayer, and one for the exit."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from widthwise.model.context import Choices

if TYPE_CHECKING:
    from widthwise.model.residual.interface import Stream


class Site(nn.Module, ABC):
    """One sublayer's access to the stream."""

    def take_place(self, index: int) -> None:
        """Is told how many sites come before it in the stream. Only what weights start at may depend on it."""
        return

    def join(self, first: Any) -> None:
        """Uses the parameters that a layer has once from the first site of its layer, if the variant has any."""

    def choices(self) -> Choices:
        """Return what the residual decided for the layer; see `model.context.Choices`."""
        return {}

    @abstractmethod
    def read(self, stream: "Stream") -> tuple[Tensor, Any]:
        """The sublayer's input (B, T, d_read), and what `write` needs as `kept`."""

    @abstractmethod
    def write(self, kept: Any, update: Tensor) -> "Stream":
        """update: (B, T, d_write), the sublayer's output -> the stream after it. Once for each read."""


class Exit(nn.Module, ABC):
    """From the stream after the last layer to the input of the head."""

    def share_reduction(self, other: Any) -> None:
        """Uses the reduction matrix of another exit of the same variant, if the variant has one."""

    @abstractmethod
    def forward(self, stream: "Stream") -> Tensor:
        """The stream after the last layer -> the normalised input of the head, (B, T, d_model)."""
