"""The modules of learned positions and of n-gram embeddings."""

from collections.abc import Iterable
from functools import reduce
from typing import cast

import torch
from torch import Tensor, nn

from widthwise.model.axes import Embedding, Table
from widthwise.model.input_tables import LearnedPositionsConfig, NGramsConfig


class LearnedPositions(Table):
    """One row per position."""

    def __init__(self, config: LearnedPositionsConfig, width: int):
        super().__init__({"n_positions": config.n_positions}, {"d_model": width}, start=None)

    @property
    def n_positions(self) -> int:
        return len(self.weight)

    def forward(self, positions: Tensor) -> Tensor:
        """positions: integers (...) from 0 to n_positions - 1 -> (..., width)."""
        return nn.functional.embedding(positions, self.weight)


PRIME = 2**31 - 1
BASE = 1_103_515_245
"""An n-gram is the number with its tokens as digits to this base, modulo the prime and then modulo the rows. No product
exceeds 63 bits, and the rows may have any factor in common with the vocabulary."""


class NGramTable(Embedding):
    """One row for all n-grams of one hash. It starts at 0, so that the model starts as the one without."""

    def __init__(self, n_rows: int, width: int):
        Table.__init__(self, {"n_rows": n_rows}, {"d_model": width}, start=0.0)


class NGrams(nn.Module):
    """The tables of all orders."""

    def __init__(self, config: NGramsConfig, vocab_size: int, width: int):
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.tables = nn.ModuleList(NGramTable(config.n_rows, width) for _ in range(2, config.max_n + 1))

    def forward(self, tokens: Tensor, before: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """tokens: integers (B, T) -> the sum of the rows of the n-grams that end in each, (B, T, width).

        before: integers (B, P), the tokens before, where known; documents: integers (B, S), S at
        least P + T, of which document the last S tokens are. Where an n-gram begins before the text or in another
        document, the missing tokens count as one that is in no vocabulary.
        """
        n_new = tokens.shape[1]
        seen = tokens if before is None else torch.cat((before, tokens), dim=1)
        of_seen = torch.zeros_like(seen) if documents is None else documents[:, -seen.shape[1] :]
        hashed = self._hashes(seen, of_seen)
        rows = [table(ids[:, -n_new:]) for table, ids in zip(cast(Iterable[NGramTable], self.tables), hashed)]
        return reduce(torch.add, rows)

    def _hashes(self, tokens: Tensor, documents: Tensor) -> list[Tensor]:
        """For every order the row of the n-gram that ends in each token, integers (B, S)."""
        places, total, factor, found = torch.arange(tokens.shape[1], device=tokens.device), tokens, 1, []
        for distance in range(1, self.config.max_n):
            earlier = (places - distance).clamp(min=0)
            is_known = (places >= distance) & (documents[:, earlier] == documents)
            factor = factor * BASE % PRIME
            total = (total + torch.where(is_known, tokens[:, earlier], self.vocab_size) * factor) % PRIME
            found.append(total % self.config.n_rows)
        return found
