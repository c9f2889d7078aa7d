"""The view of a finished model that statistics work on, ours or another library's."""

from abc import ABC, abstractmethod

from torch import Tensor

from widthwise.analysis.attention_calls import AttentionCall


class Watcher(ABC):
    """Receives the tensors of one forward pass as they appear. They must not be changed, nor kept after the pass."""

    @abstractmethod
    def see_stream(self, depth: int, stream: Tensor, hidden: Tensor) -> None:
        """Called after each layer in order; depth 0 is the stream before the first layer.

        stream: (B, T, width), the coordinates of the residual stream written so far, carried ones included; hidden:
        (B, T, d_model), the stream after the model's last norm.
        """

    @abstractmethod
    def see_activations(self, layer: int, block: int, activations: Tensor) -> None:
        """Layers and blocks from 0 on. activations: (n, d_ff), what the down-projection of this block multiplies, of
        the next n tokens: once a pass, or in several pieces. The activation of a unit that a token leaves out is 0.
        """

    @abstractmethod
    def see_block(self, layer: int, block: int, hidden: Tensor) -> None:
        """Called for each block but the last of a feed-forward that is a stack; layers and blocks from 0 on.

        hidden: (B, T, d_model), the stream as it is after that block, after the model's last norm.
        """

    @abstractmethod
    def see_attention(self, layer: int, call: AttentionCall) -> None:
        """Called once a layer; layers count from 0."""


class Subject(ABC):
    """A causal language model in evaluation mode."""

    @property
    @abstractmethod
    def d_model(self) -> int:
        """Width of the head."""

    @property
    @abstractmethod
    def widths(self) -> list[int]:
        """Width of each layer."""

    @abstractmethod
    def run(self, tokens: Tensor, watcher: Watcher) -> None:
        """Runs the model, uncompiled and without its logits, while the watcher looks. tokens: integers (B, T)."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: (n, d_model) -> (n, vocab_size)."""
