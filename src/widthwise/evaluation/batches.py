"""Batches of token rows, in which a shared prefix is read once.

The choices of a question share its text: the model reads it once, and its keys and values serve every choice. The same
holds for few-shot examples before several questions.
"""

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from widthwise.model.decoder import Decoder
from widthwise.model.generate import pad_left

LEAST_SAVED = 0.25
"""A shared prefix is read in a separate pass only if this saves at least this share of the tokens of its rows."""
LEAST_SHARE = 0.75
"""Rows share a prefix only if it has at least this share of the tokens that each reads before its first prediction."""
CACHE_BYTES = 2**30
"""Largest size of the keys and values of a pass over rows with shared prefixes."""


class Row(NamedTuple):
    """Tokens of one sequence, and the number of last tokens to predict."""

    tokens: list[int]
    n_predicted: int

    @property
    def n_read(self) -> int:
        """Number of input tokens: all but the last, which is only predicted."""
        return len(self.tokens) - 1

    @property
    def n_before(self) -> int:
        """Number of tokens that are read before the first prediction."""
        return self.n_read - self.n_predicted


def batches(model: Decoder, rows: Sequence[Row], batch_size: int) -> "Iterator[Batch]":
    """Yield batches of at most batch_size rows, each row in one batch.

    Batches of whole rows come first, then batches with shared prefixes, both from the longest to the shortest, so that
    a lack of memory shows at once and a batch holds texts of similar lengths.
    """
    max_tokens = CACHE_BYTES // max(1, model.new_cache(1, 1).n_bytes)
    shared = []
    whole_rows = []
    for group in _groups(rows, batch_size, max_tokens):
        n_saved = (len(group.rows) - 1) * group.n_shared
        if n_saved >= LEAST_SAVED * sum(rows[i].n_read for i in group.rows):
            shared.append(group)
        else:
            whole_rows += group.rows
    whole_rows.sort(key=lambda i: -rows[i].n_read)
    for start in range(0, len(whole_rows), batch_size):
        yield Batch([Group(whole_rows[start : start + batch_size], 0)])
    batch = Batch([])
    for group in sorted(shared, key=lambda group: -group.n_shared):
        larger = Batch([*batch.groups, group])
        n_rows = len(larger.rows)
        longest = max(rows[i].n_read for i in larger.rows)
        if batch.groups and (n_rows > batch_size or n_rows * longest > max_tokens):
            yield batch
            batch = Batch([group])
        else:
            batch = larger
    if batch.groups:
        yield batch


@dataclass
class Group:
    """Rows with a shared prefix, or whole rows."""

    rows: list[int]
    """Indices of the rows."""
    n_shared: int
    """Length of the prefix that all rows share and that is read once; 0 for whole rows."""


@dataclass(frozen=True)
class Batch:
    """One group of whole rows, or several groups with shared prefixes."""

    groups: Sequence[Group]

    @property
    def rows(self) -> Sequence[int]:
        """Indices of the rows, in the order of the hidden states."""
        return [i for group in self.groups for i in group.rows]

    def hidden(self, model: Decoder, rows: Sequence[Row], device: torch.device) -> Tensor:
        """Return the states that predict the last tokens, (n, d_model), row after row. rows: of all batches.

        Prefixes are padded on the left; suffixes and whole rows on the right, where no prediction attends to padding.
        """
        suffixes = [torch.tensor(rows[i].tokens[group.n_shared : -1]) for group in self.groups for i in group.rows]
        tokens = pad_sequence(suffixes, batch_first=True).to(device)
        if self.groups[0].n_shared:
            prefixes = [rows[group.rows[0]].tokens[: group.n_shared] for group in self.groups]
            prefix_tokens, is_prefix = pad_left(prefixes, device)
            cache = model.new_cache(len(prefixes), prefix_tokens.shape[1])
            model.stream(prefix_tokens, cache, _padding_mask(prefixes, is_prefix))
            group_sizes = torch.tensor([len(group.rows) for group in self.groups], device=device)
            row_cache = cache.repeated(group_sizes, cache.length + tokens.shape[1])
            is_suffix = pad_sequence([torch.ones_like(s, dtype=torch.bool) for s in suffixes], batch_first=True)
            hidden = model.hidden(tokens, row_cache, _padding_mask(suffixes, is_suffix.to(device)))
        else:
            hidden = model.hidden(tokens)
        ends = [len(suffix) for suffix in suffixes]
        return torch.cat([states[end - rows[i].n_predicted : end] for states, end, i in zip(hidden, ends, self.rows)])


def _groups(rows: Sequence[Row], max_rows: int, max_tokens: int) -> list[Group]:
    """Group adjacent rows with a long shared prefix, at most max_rows with about max_tokens in all."""
    groups: list[Group] = []
    for i, row in enumerate(rows):
        if groups and len(groups[-1].rows) < min(max_rows, max_tokens // row.n_read):
            group = groups[-1]
            limit = min(group.n_shared, row.n_before)
            first_row = rows[group.rows[0]]
            n_shared = limit
            if first_row.tokens[:limit] != row.tokens[:limit]:
                n_shared = next(k for k in range(limit) if first_row.tokens[k] != row.tokens[k])
            if n_shared >= LEAST_SHARE * max(group.n_shared, row.n_before):
                group.rows.append(i)
                group.n_shared = n_shared
                continue
        groups.append(Group([i], row.n_before))
    return groups


def _padding_mask(rows: Sequence[Sized], is_real: Tensor) -> Tensor | None:
    """Return is_real, or None if all rows are equally long, so that the model skips the mask."""
    return None if len(set(map(len, rows))) == 1 else is_real
