"""Which keys a query may look at, where that is not simply every earlier one."""

import torch
from torch import Tensor


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
    """What is added to scores: 0 where a query may look, at earlier tokens of its document and at itself; else -inf.

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
