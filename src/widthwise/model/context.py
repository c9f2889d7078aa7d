"""What all layers share in one forward pass."""

from dataclasses import dataclass, replace

from torch import Tensor

from widthwise.model.rope import Rope


@dataclass(frozen=True)
class PassContext:
    """Computed once before the first layer."""

    tokens: Tensor
    """Token ids, integers (B, T)."""
    rope: dict[Rope, tuple[Tensor, Tensor]]
    """How heads turn -> cosines and sines of this pass's positions."""
    mask: Tensor | None
    """bool (B, 1, T, S), True where a query may look; None means causal over the T tokens themselves."""
    progress: Tensor
    """How far training is, a scalar from 0 to 1; 1 outside training. A tensor, so that compiled code reads it anew."""
    width_fraction: Tensor | None = None
    """A scalar that takes the place of what dynamic-width layers would choose for each token."""
    start: int = 0
    """Tokens in the cache before this pass."""
    positions: Tensor | None = None
    """integers (B or 1, T), where queries and keys stand; None where only layers are run."""

    def ahead(self, k: int) -> "PassContext":
        """Of a pass without cache and padding: all positions but the last k, with the tokens k places on from them."""
        n = self.tokens.shape[1] - k
        rope = {kind: (cos[:, :n], sin[:, :n]) for kind, (cos, sin) in self.rope.items()}
        positions = None if self.positions is None else self.positions[:, :n]
        return replace(self, tokens=self.tokens[:, k:], rope=rope, positions=positions)
