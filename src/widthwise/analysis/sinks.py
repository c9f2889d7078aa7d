"""Attention sinks: how much of the attention, and of the size of the stream, the first token of each text takes.

Sources: Xiao et al. 2024, arXiv:2309.17453; Gu et al. 2025, arXiv:2410.10781.
"""

from typing import Any

import torch
from torch import Tensor

from widthwise.analysis.attention_calls import AttentionCall


class SinkMeter:
    """Sums over the texts of one layer."""

    def __init__(self) -> None:
        self._weights: Tensor | float = 0.0
        """(n_heads,) fp64: weight of the first token, summed over all queries."""
        self._n_queries = 0
        self._norms = torch.zeros(2, dtype=torch.float64)
        """Sum of norms over first tokens, and over all others."""
        self._n_tokens = torch.zeros(2, dtype=torch.float64)

    def add_attention(self, call: AttentionCall) -> None:
        weights = call.first_key_weights()
        self._weights += weights.sum(dim=(0, 2), dtype=torch.float64)
        self._n_queries += weights.shape[0] * weights.shape[2]

    def add_stream(self, stream: Tensor) -> None:
        """stream: (B, T, width), after the layer; T >= 2."""
        norms = torch.linalg.vector_norm(stream, dim=-1, dtype=torch.promote_types(stream.dtype, torch.float32))
        parts = norms.double().tensor_split((1,), dim=1)
        self._norms += torch.stack([part.sum() for part in parts]).cpu()
        self._n_tokens += torch.tensor([part.numel() for part in parts])

    def summary(self) -> dict[str, Any]:
        """heads: the mean over all queries, the first token's own among them, of the weight of the first token;
        first_token_share: the mean over heads; norm_ratio: mean norm of the stream at first tokens over that at the
        others, null where that is 0.
        """
        heads = torch.as_tensor(self._weights) / self._n_queries
        first, others = (self._norms / self._n_tokens).tolist()
        return {
            "first_token_share": float(heads.mean()),
            "heads": heads.tolist(),
            "norm_ratio": first / others if others > 0 else None,
        }
