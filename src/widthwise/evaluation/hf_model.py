"""A causal language model of transformers, called as a decoder of ours is."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

TOLERANCE = 1e-3
"""Difference of the logits, relative to the largest, up to which they are those of the head alone."""


class Positions(NamedTuple):
    """How long a text the model was made for."""

    n_positions: int


class HFModel(nn.Module):
    """Hidden states and logits apart, because logits of a long text at once may not fit into memory.

    Where the head alone does not make the logits, as in models that scale or cap them, they stand for hidden states.
    """

    def __init__(self, model: Any, n_positions: int | None):
        """model: a `PreTrainedModel` for causal language modelling."""
        super().__init__()
        self.model = model
        self.config = model.config.get_text_config()
        self.positions = None if n_positions is None else Positions(n_positions)
        self._has_plain_head = self._check_head()

    @property
    def embedding(self) -> nn.Embedding:
        return self.model.get_input_embeddings()

    def hidden(self, tokens: Tensor) -> Tensor:
        """tokens: integers (B, T) -> (B, T, d_model), or logits (B, T, vocab_size)."""
        if self._has_plain_head:
            return self.model.base_model(tokens, use_cache=False).last_hidden_state
        return self.model(tokens, use_cache=False).logits

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: what `hidden` makes -> (..., vocab_size)."""
        return self.model.get_output_embeddings()(hidden) if self._has_plain_head else hidden

    @torch.no_grad()
    def _check_head(self) -> bool:
        tokens = torch.arange(2, device=self.embedding.weight.device)[None]
        expected = self.model(tokens, use_cache=False).logits
        found = self.model.get_output_embeddings()(self.model.base_model(tokens, use_cache=False).last_hidden_state)
        return bool((found - expected).abs().max() <= TOLERANCE * expected.abs().max())
