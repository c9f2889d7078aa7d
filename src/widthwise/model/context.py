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
    """(B, 1, T, S): bool, True where a query may look, or what is added to scores; None: causal over the T tokens."""
    progress: Tensor
    """How far training is, a scalar from 0 to 1; 1 outside training. A tensor, so that compiled code reads it anew."""
    width_fraction: Tensor | None = None
    """A scalar that takes the place of what dynamic-width layers would choose for each token."""
    start: int = 0
    """Tokens in the cache before this pass."""
    positions: Tensor | None = None
    """integers (B or 1, T), where queries and keys stand; None where only layers are run."""
    documents: Tensor | None = None
    """integers (B, S), over cached and new tokens: a query looks at earlier tokens of equal number alone, which `mask`
    then says too; None where rows are not divided. For a form of attention that needs no mask."""

    def ahead(self, k: int) -> "PassContext":
        """All positions but the last k, with the tokens k places on from them. For a pass without cache and padding."""
        n = self.tokens.shape[1] - k
        rope = {kind: (cos[:, :n], sin[:, :n]) for kind, (cos, sin) in self.rope.items()}
        mask = None if self.mask is None else self.mask[..., :n, :n]
        positions, documents = (None if x is None else x[:, :n] for x in (self.positions, self.documents))
        tokens = self.tokens[:, k:]
        return replace(self, tokens=tokens, rope=rope, mask=mask, positions=positions, documents=documents)
