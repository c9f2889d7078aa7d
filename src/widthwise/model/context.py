"""The context that all layers share in one forward pass, the attention masks, and the choices of layers."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from widthwise.model.rope import Rope

Choices = dict[str, Tensor]
"""What a layer returns besides the stream about its decisions; empty if it makes none.

auxiliary_loss: scalar added to the objective, coefficients included; never part of a reported loss.
width_fraction: (B, T) fp32, the hidden width each token asks for over d_ff, with gradient.
expert_load: (n_experts,), each expert's share of the routed choices, without gradient.
balance_loss, router_z_loss: scalars without gradient, for reports.
"""


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


def all_real(tokens: Tensor, start: int, seen: Tensor | None, is_real: Tensor | None) -> Tensor | None:
    """bool (B, S) over cached and new tokens, or None where nothing is padding.

    start: how many are cached. seen, is_real: of cached and of new tokens, None: all are real. No tensor is looked
    into, which on a GPU would wait.
    """
    if is_real is None and seen is None:
        return None
    new = torch.ones_like(tokens, dtype=torch.bool) if is_real is None else is_real
    return torch.cat((new.new_ones(len(new), start) if seen is None else seen, new), dim=1)


def causal_mask(real: Tensor | None, start: int, n_new: int, device: torch.device) -> Tensor | None:
    """bool (B or 1, 1, T, S); None where plain causal attention over the new tokens says the same."""
    if real is None and (start == 0 or n_new == 1):
        return None
    queries = torch.arange(start, start + n_new, device=device)[:, None]
    keys = torch.arange(start + n_new, device=device)[None]
    causal = (keys <= queries)[None, None]
    if real is None:
        return causal
    # A padded query still looks at itself: a row without any key would be NaN and spread through the cache.
    return causal & (real[:, None, None, :] | (keys == queries))


def document_mask(documents: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bias of the scores: 0 at earlier tokens of the query's document and at itself; else -inf.

    documents: integers (B, T) -> (B, 1, T, T). Numbers and not bool, of the type of the queries, because torch's
    attention makes such numbers of bool, and every layer would keep its own.
    """
    may_look = (documents[:, :, None] == documents[:, None, :]).tril()
    return torch.zeros_like(may_look, dtype=dtype).masked_fill_(~may_look, -torch.inf)[:, None]


def padding_documents(real: Tensor) -> Tensor:
    """Documents of which each token sees its own: the real tokens of a row are one, each token of left padding is one.

    real: bool (B, S) -> integers (B, S).
    """
    return torch.where(real, 0, -1 - torch.arange(real.shape[1], device=real.device))
